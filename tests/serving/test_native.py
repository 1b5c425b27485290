"""Our own API: tokens with their characters, streams, and what is not one model's work."""

import http.client
import json
import math

import pytest

import transduct
from tests.interfaces.clients import service_of, service_of_all, serving
from transduct.predictors.inside import counted, settings, shown
from transduct.serving import hosted
from transduct.serving.served_models import Served
from transduct.storage import weights_of

TEXT, KNOWN = "a b c. d e", "a b c d e"


@pytest.fixture(scope="module")
def model(trained_run):
    return transduct.load(trained_run)


@pytest.fixture(scope="module")
def client(model):
    with serving(service_of(model, "reverse", pair=("en", "de"))) as client:
        yield client


def test_tokens_have_log_probabilities_and_characters(client, model):
    body = {"texts": ["a b c", "a\nb"], "log_probabilities": True, "alignments": True}
    found = client.post("/v1/translate", body)["translations"]
    expected = model.translate(["a b c"])[0]
    tokens = found[0]["tokens"]
    assert [expected.text[slice(*each["target"])] for each in tokens] == [
        each["text"] for each in tokens
    ]
    end = model.score(["a b c"], [expected.tokens])[0]
    assert sum(each["log_probability"] for each in tokens) > end
    assert sum(each["log_probability"] for each in tokens) == pytest.approx(end, abs=3)
    rows, columns, weights = model.attention("a b c", expected.text).alignment()
    for place, each in enumerate(tokens):
        if each["source"] is not None:
            assert "a b c"[slice(*each["source"])] in columns[int(weights[place].argmax())]
    assert found[1]["tokens"] is None  # two lines
    with_logs = client.post("/v1/translate", {**body, "alignments": False})["translations"]
    assert {each["source"] for each in with_logs[0]["tokens"]} == {None}
    assert rows


def test_markup_and_terms(client, model):
    text = "a <b>b</b> %s"
    body = {"texts": [text], "format": "html", "glossary": {"a": "f"}, "alignments": True}
    [found] = client.post("/v1/translate", body)["translations"]
    [expected] = model.translate([text], format="html", glossary={"a": "f"})
    assert found["text"] == expected.text
    assert found["lost"] == [*expected.lost]
    assert "%s" in found["lost"]  # which this model cannot write
    assert "tokens" not in found
    events = client.post("/v1/translate", {**body, "stream": True})
    assert expected.text in events.decode()


def test_other_words_stand_where_one_does(client, model):
    target = model.translate(["a b c"])[0].text
    body = {"text": "a b c", "target": target, "place": target.rindex(" ") + 1}
    found = client.post("/v1/alternatives", body)["alternatives"]
    assert len(found) == 8
    assert [each["probability"] for each in found] == sorted(
        [each["probability"] for each in found], reverse=True
    )
    assert all(each["text"].startswith(target[: body["place"]]) for each in found)
    assert len({each["text"] for each in found}) == 8
    tokens = model.explained("a b c", target, model.translate(["a b c"])[0].tokens)
    same = next(each for each in found if each["text"] == target)
    assert same["probability"] == pytest.approx(math.exp(tokens[-1]["log_probability"]))
    [one] = client.post("/v1/alternatives", {**body, "place": 0, "count": 1})["alternatives"]
    [best] = model.translate(["a b c"], prefixes=[one["text"].split()[0]])
    assert one["text"] == best.text
    said, _ = client.refused("/v1/alternatives", {**body, "text": "a\nb"}, 400)
    assert said == "input 1: found 2 lines or parts; ask for the tokens of one at a time"
    said, _ = client.refused("/v1/alternatives", {**body, "count": 9}, 400)
    assert "'count'" in said


@pytest.mark.parametrize("beam", [1, 3])
def test_a_stream_ends_with_the_whole_answer(client, beam):
    body = {"texts": [f"{TEXT}\n{TEXT}"], "beam": beam, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    connection.request(
        "POST", "/v1/translate", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.read().decode().split("\n\n")
        if line
    ]
    connection.close()
    whole = client.post("/v1/translate", {**body, "stream": False})
    assert events[-1] == whole
    assert "".join(each["delta"] for each in events[:-1]) == whole["translations"][0]["text"]
    assert len(events) >= 3  # word by word
    said, _ = client.refused("/v1/translate", {**body, "texts": ["a", "b"]}, 400)
    assert said == "found 2 texts; stream one at a time"
    client.refused("/v1/translate", {**body, "beem": 1}, 400)


def test_a_blank_text_is_its_own_translation_and_no_model_is_asked(client, model, monkeypatch):
    monkeypatch.setattr(model, "generate", lambda *_: 1 / 0)
    found = client.post("/v1/translate", {"texts": ["", " \n"]})["translations"]
    assert [each["text"] for each in found] == ["", " \n"]


def test_languages_may_be_given_where_they_fit(client):
    same = client.post("/v1/translate", {"texts": [TEXT]})
    assert client.post("/v1/translate", {"texts": [TEXT], "from": "EN", "to": "de"}) == same
    said, _ = client.refused("/v1/translate", {"texts": [TEXT], "to": "fr"}, 400)
    assert said == "no model translates into 'fr'; there are: de"
    said, _ = client.refused("/v1/translate", {"texts": [TEXT], "model": "x"}, 404)
    assert said == "no model is called 'x'; there are: reverse"
    scored = client.post(
        "/v1/score", {"sources": ["a"], "targets": ["a"], "from": "en", "to": "de"}
    )
    assert scored == client.post("/score", {"sources": ["a"], "targets": ["a"]})


def test_it_is_live_while_it_warms_and_ready_when_warm(client):
    assert client("GET", "/live")[2] == {"status": "ok"}
    while client("GET", "/ready")[0] == 503:
        pass
    assert client("GET", "/ready")[2] == {"status": "ok"}


def test_the_inside_of_a_sentence_is_that_of_python(client, model):
    asked = {"text": KNOWN, "view": "sentence"}
    found = client.post("/v1/inspect", asked)
    assert found == shown(model, "sentence", KNOWN)
    tokens = found["tokens"]
    for view in ("next", "positions"):
        one = client.post("/v1/inspect", {**asked, "view": view, "target": tokens})
        assert one == json.loads(json.dumps(shown(model, view, KNOWN, tokens)))
    name = found["maps"][-1]["name"]
    one = client.post("/v1/inspect", {**asked, "view": "attention", "target": tokens, "name": name})
    assert one == shown(model, "attention", KNOWN, tokens, name)
    tree = client.post("/v1/inspect", {**asked, "view": "beam", "beam": 2, "from": "EN"})
    assert tree == shown(model, "beam", KNOWN, beam=2)
    gone_on = client.post("/v1/inspect", {**asked, "prefix": tokens[1:2]})
    assert gone_on == shown(model, "sentence", KNOWN, prefix=tokens[1:2])
    said, _ = client.refused("/v1/inspect", {**asked, "view": "why"}, 400)
    assert "view" in said


def test_a_text_may_have_more_tokens_than_texts_may_wait(client):
    said, _ = client.refused("/v1/inspect", {"text": "a", "target": [5] * 1_500}, 400)
    assert said.startswith("attention takes at most")


def test_parts_are_those_of_describe(client, model, trained_run):
    asked = {"text": TEXT, "view": "model"}
    loaded = counted({"task": ""}, weights_of(model.model))
    assert client.post("/v1/inspect", asked) == json.loads(json.dumps(loaded))
    service = service_of_all([Served.of_words(f"en-de={trained_run}")])
    service.models.load()
    with serving(service) as other:
        found = other.post("/v1/inspect", asked)
    assert found == json.loads(json.dumps(counted(*settings(trained_run / "model"))))


def test_a_map_of_many_weights_is_refused(client, monkeypatch):
    monkeypatch.setattr(hosted, "LARGEST_MAP", 8)
    body = {"text": "a b c d", "view": "attention", "name": "encoder.0.self"}
    said, _ = client.refused("/v1/inspect", body, 413)
    assert said == "more than 8 weights a head are too many to be shown; shorten the text"
