"""OpenAI's API, as its own client uses it."""

import openai
import pytest

import transduct
from tests.interfaces.clients import service_of, serving
from tests.tones import encoded, string

TEMPLATE = """{%- for message in messages %}
{%- if loop.previtem and loop.previtem.role == message.role %}
{{- raise_exception("a chat begins with a user") }}
{%- endif %}
{{- bos_token + "[" + message.role + "] " + message["content"] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "[assistant]" }}{% endif %}"""
USER = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "a b c"}]


def asks_of(client, key="secret"):
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{client.port}/v1", api_key=key, max_retries=0, timeout=60
    )


@pytest.fixture(scope="module")
def asks(server):
    with asks_of(server) as asks:
        yield asks


def test_its_client_is_served_unmodified(asks, trained_run):
    model = transduct.load(trained_run)
    expected = model.translate(["a b c"], n_best=3)[0]
    names = [each.id for each in asks.models.list()]
    assert names == ["en-de", "de-ko", "transduct:en-de", "transduct:de-ko"]
    assert asks.models.retrieve("transduct:en-de").owned_by == "transduct"
    assert {(each.running_batch, each.reason) for each in asks.models.list()} == {(True, None)}
    found = asks.chat.completions.create(
        model="transduct:en-de", messages=USER, n=3, logprobs=True, user="ignored"
    )
    assert [each.message.content for each in found.choices] == [
        each.text for each in expected.alternatives
    ]
    best = found.choices[0]
    assert sum(each.logprob for each in best.logprobs.content) >= expected.score
    assert all(each.top_logprobs == [] for each in best.logprobs.content)
    assert best.finish_reason == "stop"
    assert found.usage.prompt_tokens == 4
    text = asks.completions.create(model="en-de", prompt=["a b c", "d"], echo=False)
    assert [each.text for each in text.choices] == model.predict(["a b c", "d"])
    parts = [{"type": "text", "text": "a b c"}]
    chained = asks.chat.completions.create(
        model="transduct:en-ko", messages=[{"role": "user", "content": parts}]
    )
    assert chained.choices[0].message.content == model.predict(model.predict(["a b c"]))[0]


def test_tokens_have_their_log_probabilities_and_those_of_the_likeliest(asks, trained_run):
    model = transduct.load(trained_run)
    [expected] = model.translate(["a b c d"], beam=1)
    tokens = model.explained("a b c d", expected.text, expected.tokens)
    ask = {"model": "en-de", "messages": [{"role": "user", "content": "a b c d"}]}
    found = asks.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0]
    shown = found.logprobs.content
    assert "".join(each.token for each in shown) == found.message.content == expected.text
    assert [each.logprob for each in shown] == [each["log_probability"] for each in tokens]
    for each in shown:
        assert bytes(each.bytes).decode() == each.token
        assert len(each.top_logprobs) == 3
        values = [other.logprob for other in each.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert each.token in [other.token for other in each.top_logprobs]
    cut = asks.chat.completions.create(
        **ask, logprobs=True, top_logprobs=2, stop=[expected.text[3]]
    ).choices[0]
    assert "".join(each.token for each in cut.logprobs.content) == cut.message.content
    text = asks.completions.create(model="en-de", prompt="a b c d", logprobs=2).choices[0]
    assert text.logprobs.tokens == [each.token for each in shown]
    assert text.logprobs.token_logprobs == [each.logprob for each in shown]
    logs = text.logprobs
    assert logs.text_offset[0] == 0
    for token, place, top in zip(logs.tokens, logs.text_offset, logs.top_logprobs, strict=True):
        assert text.text[place:].startswith(token)
        assert len(top) == 2
    alone = asks.completions.create(model="en-de", prompt="a b", logprobs=0, echo=True).choices[0]
    assert alone.logprobs.top_logprobs is None
    assert "".join(alone.logprobs.tokens) == alone.text
    assert (alone.logprobs.tokens[0], alone.logprobs.token_logprobs[0]) == ("a b", None)
    assert None not in alone.logprobs.token_logprobs[1:]
    parts = list(asks.chat.completions.create(**ask, logprobs=True, top_logprobs=1, stream=True))
    streamed = [t for p in parts if p.choices[0].logprobs for t in p.choices[0].logprobs.content]
    assert [each.token for each in streamed] == [each.token for each in shown]
    blank = asks.completions.create(model="en-de", prompt=" ", logprobs=1).choices[0]
    assert (blank.text, blank.logprobs.tokens) == (" ", [])


def test_answers_are_cut_where_they_are_asked_to(asks, trained_run):
    whole = transduct.load(trained_run).predict(["a b c d"])[0]
    ask = {"model": "en-de", "messages": [{"role": "user", "content": "a b c d"}]}
    cut = asks.chat.completions.create(**ask, stop=[whole[2]]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (whole.split(whole[2])[0], "stop")
    short = asks.chat.completions.create(**ask, max_completion_tokens=1).choices[0]
    assert short.finish_reason == "length"
    assert len(short.message.content.split()) <= 1
    drawn = [
        asks.chat.completions.create(**ask, temperature=1.5, top_p=0.9, seed=3).choices[0]
        for _ in range(2)
    ]
    assert drawn[0].message.content == drawn[1].message.content
    alike = asks.chat.completions.create(**ask, temperature=0.01, n=4)
    assert [each.message.content for each in alike.choices] == [whole] * 4


def test_answers_arrive_in_parts(asks, trained_run):
    text = "a b. \nc d.\n\n e"
    expected = transduct.load(trained_run).predict([text])[0]
    events = list(
        asks.chat.completions.create(
            model="en-de",
            messages=[{"role": "user", "content": text}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    parts = [each.choices[0].delta.content or "" for each in events if each.choices]
    assert "".join(parts) == expected
    assert [part for part in parts if part]
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].usage.total_tokens > 3
    told = asks.completions.create(model="en-de", prompt=text, stream=True)
    assert "".join(each.choices[0].text for each in told) == expected


@pytest.mark.parametrize(
    ("key", "more", "error", "param"),
    [
        ("wrong", {}, openai.AuthenticationError, None),
        ("secret", {"model": "gpt-5"}, openai.NotFoundError, "model"),
        ("secret", {"tools": [{"type": "function", "function": {"name": "f"}}]}, None, "tools"),
        ("secret", {"response_format": {"type": "json_object"}}, None, "response_format"),
        ("secret", {"messages": USER[:1]}, None, "messages"),
        ("secret", {"temperature": 3}, None, "temperature"),
        (
            "small",
            {"messages": [{"role": "user", "content": "a" * 99}]},
            openai.RateLimitError,
            None,
        ),
        (
            "secret",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]},
            None,
            "messages",
        ),
        ("secret", {"model": "transduct:en-ko", "logprobs": True}, None, "logprobs"),
        ("secret", {"top_logprobs": 2}, None, "top_logprobs"),
        ("secret", {"logprobs": True, "top_logprobs": 21}, None, "top_logprobs"),
    ],
)
def test_what_is_wrong_has_its_own_exception(server, key, more, error, param):
    given = {"model": "en-de", "messages": USER, **more}
    with asks_of(server, key) as asks, pytest.raises(error or openai.BadRequestError) as refused:
        asks.chat.completions.create(**given)
    assert (refused.value.param or "") == (param or "")


def test_a_key_may_send_so_many_requests(server):
    with asks_of(server, "slow") as asks:
        asks.models.list()
        with pytest.raises(openai.RateLimitError, match="this key may send 1 requests a day"):
            asks.models.list()


def test_language_models_continue_and_encoders_give_vectors(family_of, tmp_path, trained_run):
    def loaded(family):
        return transduct.load(family_of(family)[1])

    model = loaded("gpt")
    service = service_of(model, "gpt")
    service.models.every[0].task = "language_modeling"
    with serving(service) as client, asks_of(client) as asks:
        assert asks.models.retrieve("gpt").running_batch is True
        ask = {"model": "gpt", "prompt": "to be", "max_tokens": 40}
        [expected] = model.predict(["to be"], length=40)
        found = asks.completions.create(**ask, echo=True, logprobs=2)
        assert found.choices[0].text == "to be" + expected
        assert found.choices[0].finish_reason == "length"
        assert found.usage.completion_tokens == 40
        logs = found.choices[0].logprobs
        assert "".join(logs.tokens) == "to be" + expected
        assert (logs.token_logprobs[0], logs.top_logprobs[0]) == (None, None)
        assert all(len(top) <= 2 for top in logs.top_logprobs[1:])
        plain = asks.completions.create(**ask, logprobs=2).choices[0].logprobs
        assert logs.token_logprobs[-40:] == plain.token_logprobs
        prompt = {"model": "gpt", "max_tokens": 0, "echo": True, "logprobs": 0}
        read = asks.completions.create(**prompt, prompt="to be\n")
        logs, [first, *others] = read.choices[0].logprobs, model.explained("", "to be\n")
        assert "".join(logs.tokens) == read.choices[0].text == "to be\n"
        assert logs.token_logprobs == [None, *(each["log_probability"] for each in others)]
        nats = model.measure(["to be"])["nats_per_token"] * len(logs.tokens)
        assert sum(each["log_probability"] for each in [first, *others]) == pytest.approx(-nats)
        assert read.usage.prompt_tokens == read.usage.total_tokens == len(logs.tokens)
        far = "to be\nor " * model.context
        logs = asks.completions.create(**prompt, prompt=far).choices[0].logprobs
        assert ("".join(logs.tokens), logs.token_logprobs.count(None)) == (far, 1)
        blank = asks.completions.create(**prompt, prompt="").choices[0]
        assert (blank.text, blank.logprobs.token_logprobs) == ("", [None])
        bare = asks.completions.create(**{**prompt, "logprobs": None}, prompt="to be").choices[0]
        assert (bare.text, bare.logprobs) == ("to be", None)
        told = [each.choices[0].text for each in asks.completions.create(**ask, stream=True)]
        assert "".join(told) == expected
        assert len(told) > 3, "it comes in parts"
        long = {**ask, "max_tokens": model.context + 9}
        assert (
            asks.completions.create(**long).choices[0].text
            == model.predict(["to be"], length=long["max_tokens"])[0]
        )
        drawn = asks.completions.create(**ask, temperature=1.0, seed=3, n=2)
        assert [each.text for each in drawn.choices] == [
            model.predict(["to be"], length=40, temperature=1.0, seed=seed)[0] for seed in (3, 4)
        ]
        chat = {"model": "gpt", "messages": USER, "max_tokens": 5}
        assert (
            asks.chat.completions.create(**chat).choices[0].message.content
            == model.predict(["Rhyme.\na b c"], length=5)[0]
        )
        service.models.every[0].template = TEMPLATE
        assert (
            asks.chat.completions.create(**chat).choices[0].message.content
            == model.predict(["[system] Rhyme.\n[user] a b c\n[assistant]"], length=5)[0]
        )
        with pytest.raises(openai.BadRequestError, match="a chat begins with a user") as refused:
            asks.chat.completions.create(**{**chat, "messages": USER[1:] * 2})
        assert refused.value.param == "messages"
        with pytest.raises(
            openai.BadRequestError, match="gives no vectors; choose a model with an encoder alone"
        ):
            asks.embeddings.create(model="gpt", input="a")
    model = loaded("masked tokens")
    with serving(service_of(model, "bert")) as client, asks_of(client) as asks:
        [expected, _] = model.embed(["to be", "or"])
        found = asks.embeddings.create(model="bert", input=["to be", "or"])
        assert found.data[0].embedding == pytest.approx(expected, abs=1e-5)
        plain = asks.embeddings.create(model="bert", input="to be", encoding_format="float")
        assert plain.data[0].embedding == pytest.approx(expected, abs=1e-5)
    model = loaded("speech")
    (tmp_path / "sound.wav").write_bytes(encoded(string("12")))
    [said] = model.predict([str(tmp_path / "sound.wav")])
    with serving(service_of(model, "speech")) as client, asks_of(client) as asks:
        for shape in ("json", "text", "verbose_json"):
            with open(tmp_path / "sound.wav", "rb") as file:
                found = asks.audio.transcriptions.create(
                    model="speech", file=file, response_format=shape
                )
            assert (found.strip() if shape == "text" else found.text) == said
        with (
            open(tmp_path / "sound.wav", "rb") as file,
            pytest.raises(openai.BadRequestError, match="'srt' needs times"),
        ):
            asks.audio.transcriptions.create(model="speech", file=file, response_format="srt")
