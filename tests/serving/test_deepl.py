"""DeepL's API, as its own client uses it."""

import deepl
import pytest

import transduct


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


def test_what_is_wrong_has_its_own_exception(server):
    with pytest.raises(deepl.AuthorizationException, match="no such key"):
        asks_of(server, "wrong").translate_text("a", target_lang="DE")
    with pytest.raises(deepl.QuotaExceededException, match="this key's quota has 10 characters"):
        asks_of(server, "small").translate_text("a" * 11, target_lang="DE")
    asks = asks_of(server)
    for wrong, said in (
        ({"target_lang": "FR"}, "no model translates into 'FR'; there are: de, ko"),
        ({"target_lang": "DE", "formality": "more"}, "formality is 'more'"),
        ({"target_lang": "DE", "tag_handling": "xml"}, "tag_handling is not supported"),
    ):
        with pytest.raises(deepl.DeepLException, match=said):
            asks.translate_text("a", **wrong)
    with pytest.raises(deepl.DeepLException, match="glossaries are not supported"):
        asks.list_glossaries()
    asks.close()
