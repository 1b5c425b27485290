"""LibreTranslate's API, as its own client and other programs use it."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from libretranslatepy import LibreTranslateAPI

import transduct
from tests.interfaces.clients import service_of, serving

REQUESTS = sorted(Path(__file__).with_name("requests").glob("*.json"))


def address(client):
    return f"http://127.0.0.1:{client.port}/"


def test_its_client_is_served_unmodified(server, trained_run):
    expected = transduct.load(trained_run).predict(["a b c"])[0]
    asks = LibreTranslateAPI(address(server), "secret")
    assert asks.translate("a b c", "en", "de") == expected
    assert asks.translate("", "en", "de") == ""
    assert {each["code"]: each["targets"] for each in asks.languages()} == {
        "en": ["de", "ko"],
        "de": ["ko"],
    }
    assert asks.detect("Das ist ein Haus, und dort ist der Garten.")[0]["language"] == "de"
    for key, text, status in ((None, "a", 401), ("wrong", "a", 401), ("small", "a" * 20, 429)):
        with pytest.raises(HTTPError) as refused:
            LibreTranslateAPI(address(server), key).translate(text, "en", "de")
        assert refused.value.code == status
        refused.value.close()


def sent(client, kept):
    """Send a request as another program does."""
    if "json" in kept:
        body, kind = json.dumps(kept["json"]).encode(), "application/json"
    elif "form" in kept:
        body, kind = urlencode(kept["form"]).encode(), "application/x-www-form-urlencoded"
    else:
        part = '--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        parts = "".join(part % pair for pair in kept["multipart"].items())
        body, kind = (parts + "--x--\r\n").encode(), "multipart/form-data; boundary=x"
    headers = {"Authorization": f"Bearer {kept['key']}"} if "key" in kept else {}
    return client("POST", kept["path"], body, kind, **headers)


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_requests_of_other_programs_are_answered(server, trained_run, path):
    kept = json.loads(path.read_text())
    model = transduct.load(trained_run)
    status, _, answer = sent(server, kept)
    assert status == 200, answer
    if "messages" in kept.get("json", {}):
        expected = model.predict([kept["json"]["messages"][-1]["content"]])[0]
        assert answer["choices"][0]["message"]["content"] == expected
        return
    [body] = [kept[name] for name in ("json", "form", "multipart") if name in kept]
    one = isinstance(body["q"], str)
    expected = model.predict([body["q"]] if one else body["q"])
    assert answer["translatedText"] == (expected[0] if one else expected)
    assert ("detectedLanguage" in answer) == (body["source"] == "auto")


def test_alternatives_lists_and_pivots_are_answered(server, trained_run):
    model = transduct.load(trained_run)
    body = {"q": ["a b c", " "], "source": "en", "target": "de", "alternatives": 2}
    answer = server.post("/translate", body | {"api_key": "secret"})
    best = model.translate(["a b c"], n_best=3)[0].alternatives
    assert answer["translatedText"] == [best[0].text, " "]
    assert answer["alternatives"] == [[each.text for each in best[1:]], []]
    answer = server.post(
        "/translate?api_key=secret", {"q": "a b c", "source": "en", "target": "ko"}
    )
    twice = model.predict(model.predict(["a b c"]))[0]
    assert answer == {"translatedText": twice, "through": ["de"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/translate", {"q": "a", "source": "en", "target": "de", "format": "html"}, 400, "format"),
        ("/translate", {"q": "a", "source": "xx", "target": "de"}, 400, "from 'xx'; there are: en"),
        ("/translate", {"q": "a", "source": "ko", "target": "de"}, 400, "from 'ko'; there are: en"),
        ("/translate", {"q": "a", "source": "de", "target": "de-AT"}, 200, ""),
        ("/translate", {"q": "a", "source": "en"}, 400, "missing key 'target'"),
        ("/suggest", {"q": "a", "s": "b", "source": "en", "target": "de"}, 403, "no suggestions"),
    ],
)
def test_what_cannot_be_translated_is_said(server, path, body, status, said):
    found, _, answer = server("POST", f"{path}?api_key=secret", body)
    assert found == status
    assert said in answer.get("error", "")


def test_documents_are_not_translated_yet(server):
    kept = {"multipart": {"file": "a", "target": "de"}, "path": "/translate_file", "key": "secret"}
    assert sent(server, kept)[::2] == (
        400,
        {"error": "documents are not supported; send their text to /translate"},
    )
    status, _, answer = server("GET", "/download_file/1?api_key=secret")
    assert (status, answer) == (404, {"error": "no such file"})


def test_suggestions_are_kept_in_the_file_that_the_operator_named(tmp_path, trained_run):
    suggestions = tmp_path / "suggestions"
    service = service_of(transduct.load(trained_run), suggestions=suggestions)
    with serving(service) as client:
        body = {"q": "a", "s": "ü", "source": "en", "target": "de"}
        assert client.post("/suggest", body) == {"success": True}
        assert json.loads(suggestions.read_text("utf-8")) == body
        said, _ = client.refused("/suggest", {**body, "s": "a" * 10_000}, 413)
        assert said == "at most 10,000 characters can be suggested"
        settings = client("GET", "/frontend/settings")[2]
    assert (settings["suggestions"], settings["keyRequired"]) == (True, False)
    assert settings["language"]["source"] == {"code": "und", "name": "Undetermined"}
