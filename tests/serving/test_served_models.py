"""Names, pairs and chains of models, and which are loaded."""

import json
import shutil
import threading

import pytest

import transduct
from tests.helpers import Stub, tiny
from tests.interfaces.clients import served_of, service_of_all, serving
from transduct.errors import TransductError
from transduct.inference.settings import DecodingConfig
from transduct.serving import served_models
from transduct.serving.requests import Problem
from transduct.serving.served_models import Models, Served, pair_of


class Translator(Stub):
    verbs = frozenset({"predict", "translate"})


def models_of(*pairs, **rest):
    names = [pair or "open" for pair in pairs]
    return Models(
        [
            served_of(Translator(), name, pair_of(pair))
            for name, pair in zip(names, pairs, strict=True)
        ],
        **rest,
    )


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("en-de", ("en", "de")),
        ("eng-German", ("en", "de")),
        ("zh-Hant-en", ("zh-Hant", "en")),
        ("multi30k", None),
        ("runs", None),
        ("xq-zz", None),
        ("", None),
    ],
)
def test_a_pair_stands_in_a_name(name, pair):
    assert pair_of(name) == pair


def test_a_request_finds_its_model_by_pair_or_by_name_and_else_two():
    models = models_of("en-de", "de-ko", "de-en")
    assert [step.served.name for step in models.route("de", "ko")] == ["de-ko"]
    assert [step.served.name for step in models.route("en", "ko")] == ["en-de", "de-ko"]
    assert models.targets("en") == ["de", "ko"]
    assert [each["code"] for each in models.languages()] == ["en", "de"]
    assert models.code("EN-gb") == "en"
    assert models.route_of_name("transduct:en-ko") == (None, ("en", "ko"))
    assert models.route_of_name("de-ko")[0].name == "de-ko"
    for wrong, said in (
        (lambda: models.route("ko", "en"), "no model translates ko-en; there are: en-de, de-ko"),
        (lambda: models.code("fr"), "no model translates from 'fr'; there are: en, de"),
        (lambda: models.code("fr", True), "no model translates into 'fr'; there are: de, ko, en"),
        (lambda: models.route_of_name("gpt-5"), "no model is called 'gpt-5'; there are: en-de, de"),
        (lambda: models.route("en", "ko", models.every[0]), "no model translates en-ko; there are"),
    ):
        with pytest.raises(Problem, match=said):
            wrong()
    with pytest.raises(Problem, match="no model translates en-ko"):
        models_of("en-de", "de-ko", pivot=False).route("en", "ko")


def test_a_lone_model_whose_pair_nobody_knows_answers_every_pair():
    models = models_of("")
    assert models.route("xx", "yy")[0].served is models.every[0]
    assert models.languages() == [{"code": "und", "name": "Undetermined", "targets": ["und"]}]


def test_a_folder_says_its_pair_and_a_command_overrules_it(run):
    config = run / "model" / "config.json"
    config.write_text(
        json.dumps(
            {**json.loads(config.read_text()), "source_language": "deu", "target_language": "en"}
        )
    )
    assert Served.of_words(str(run)).pairs == {("de", "en")}
    (run / "model" / "chat_template.jinja").write_text("{{ messages }}")
    named = Served.of_words(f"en-ko={run}")
    assert named.template == "{{ messages }}"
    assert (named.name, named.pairs) == ("en-ko", {("en", "ko")})
    assert named.size == (run / "model" / "model.safetensors").stat().st_size
    several = {"task": "translation", "languages": {"codes": ["eng_Latn", "kor_Hang", "zho_Hant"]}}
    named = Served("m2m")
    named.describe(Translator, several)
    assert ("en", "zh-Hant") in named.pairs
    assert len(named.pairs) == 6
    assert named.options("ko", "en") == {
        "source_language": "kor_Hang",
        "target_language": "eng_Latn",
    }


def test_a_model_says_why_its_texts_join_no_running_batch(monkeypatch):
    labels = served_of(Stub(), "labels")
    assert labels.separate == "it does not write texts token by token"
    translates = served_of(Translator(model=tiny(), decoding=DecodingConfig()), "a")
    assert translates.separate == ""
    monkeypatch.setattr(served_models, "captures", lambda *_: True)
    assert translates.separate == "its searches are captured on a GPU"
    translates.hosted = None
    assert translates.separate is None


def test_what_cannot_be_served_together_is_refused(trained_run):
    two = [Served.of_words(str(trained_run)) for _ in range(2)]
    with pytest.raises(TransductError, match="two models are called 'run'; name one: NAME=run"):
        Models(two)
    with pytest.raises(TransductError, match="--memory is too little for run; it takes 1 MB"):
        Models(two[:1], memory=10)


def test_the_model_unused_longest_makes_room_and_comes_back_under_requests(trained_run, tmp_path):
    paths = [shutil.copytree(trained_run, tmp_path / name) for name in ("a", "b")]
    served = [Served.of_words(f"{pair}={path}") for pair, path in zip(("en-de", "de-ko"), paths)]
    expected = transduct.load(trained_run).predict(["a b c"])[0]
    service = service_of_all(served, memory=served[0].size + 1)
    service.models.load()
    assert [each.hosted is not None for each in served] == [True, False]
    with serving(service) as client:
        answers = []

        def ask(pair):
            body = {"texts": ["a b c"], "from": pair[:2], "to": pair[3:]}
            answers.append(client.post("/translate", body)["translations"][0]["text"])

        threads = [
            threading.Thread(target=ask, args=(pair,)) for pair in ["en-de", "de-ko", "en-de"] * 4
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [expected] * 12
        assert sum(each.hosted is not None for each in served) == 1
        health = client("GET", "/health")[2]["models"]
    assert sorted(each["status"] for each in health)[-1] in ("ok", "warming")
    assert "not loaded" in {each["status"] for each in health}
