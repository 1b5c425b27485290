"""DeepL's API, as its own client uses it."""

import deepl
import pytest

import transduct
from tests.formats.test_markup import tags_of
from transduct.formats.markup import Markup


def asks_of(client, key="secret"):
    return deepl.Translator(key, server_url=f"http://127.0.0.1:{client.port}")


@pytest.fixture(autouse=True)
def no_retries():
    before = deepl.http_client.max_network_retries
    deepl.http_client.max_network_retries = 0
    yield
    deepl.http_client.max_network_retries = before


def test_its_client_is_served_unmodified(server, trained_run):
    model, asks = transduct.load(trained_run), asks_of(server)
    found = asks.translate_text(["a b c", "d"], source_lang="EN", target_lang="DE")
    assert [each.text for each in found] == model.predict(["a b c", "d"], sentences=True)
    assert found[0].detected_source_lang == "EN"
    assert asks.translate_text("a", target_lang="ko", split_sentences="0").text
    assert [each.code for each in asks.get_source_languages()] == ["EN", "DE"]
    assert [each.code for each in asks.get_target_languages()] == ["DE", "KO"]
    assert asks.get_usage().character.count > 0
    usage = asks_of(server, "small").get_usage().character
    assert (usage.count, usage.limit) == (0, 10)
    asks.close()


def test_tags_stay(server, trained_run):
    model, asks = transduct.load(trained_run), asks_of(server)
    both = {"source_lang": "EN", "target_lang": "DE"}
    text = "a <b>b <k>c</k></b><br> d"
    found = asks.translate_text(text, tag_handling="html", ignore_tags=["k"], **both)
    assert tags_of(found.text) == tags_of(text)
    assert "<k>c</k>" in found.text
    text = "<d><p>a <x/>b</p><q>c</q><s>d</s></d>"
    found = asks.translate_text(
        text, tag_handling="xml", splitting_tags="p,q", non_splitting_tags=["s"], **both
    )
    markup = Markup("xml", (), ("p", "q"), ("s",))
    assert [found.text] == model.predict([text], format=markup, sentences=True)
    with pytest.raises(deepl.DeepLException, match="is not well-formed XML"):
        asks.translate_text("<a>b", tag_handling="xml", **both)
    [answer] = server.post(
        "/v2/translate",
        {
            "text": ["a"],
            "source_lang": "EN",
            "target_lang": "DE",
            "glossary_id": "letters",
            "api_key": "secret",
        },
    )["translations"]
    assert "h" in answer["text"]
    assert "lost" not in answer
    [answer] = server.post(
        "/v2/translate",
        {"text": "a 12", "source_lang": "EN", "target_lang": "DE", "api_key": "secret"},
    )["translations"]
    assert answer["lost"] == ["12"]
    body = {"text": "a", "target_lang": "DE", "glossary_ids": ["a"]}
    status, _, answer = server("POST", "/v2/translate?api_key=secret", body)
    assert (status, answer["message"][:18]) == (400, "several glossaries")
    asks.close()


def test_what_is_wrong_has_its_own_exception(server):
    with pytest.raises(deepl.AuthorizationException, match="no such key"):
        asks_of(server, "wrong").translate_text("a", target_lang="DE")
    with pytest.raises(deepl.QuotaExceededException, match="this key's quota has 10 characters"):
        asks_of(server, "small").translate_text("a" * 11, target_lang="DE")
    asks = asks_of(server)
    for wrong, said in (
        ({"target_lang": "FR"}, "no model translates into 'FR'; there are: de, ko"),
        ({"target_lang": "DE", "formality": "more"}, "formality is 'more'"),
        ({"target_lang": "DE", "tag_handling": "pdf"}, "'tag_handling'"),
    ):
        with pytest.raises(deepl.DeepLException, match=said):
            asks.translate_text("a", **wrong)
    with pytest.raises(deepl.DeepLException, match="glossaries are not supported"):
        asks.list_glossaries()
    with pytest.raises(deepl.DeepLException, match="glossaries are not supported"):
        deepl.DeepLClient(
            "secret", server_url=f"http://127.0.0.1:{server.port}"
        ).list_multilingual_glossaries()
    asks.close()
