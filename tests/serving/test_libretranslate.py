"""LibreTranslate's API, as its own client and other programs use it."""

import io
import json
import re
import sys
import time
import zipfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

import pytest
from libretranslatepy import LibreTranslateAPI

import transduct
from tests.formats.test_markup import tags_of
from tests.interfaces.clients import service_of, serving
from transduct.data.lines import named_kind
from transduct.errors import TransductError
from transduct.formats.documents import Document
from transduct.serving import downloads

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


def test_markup_and_terms(server, trained_run):
    """Tags stay, also through two models; terms are written, or named."""
    model = transduct.load(trained_run)
    both = {"source": "en", "target": "de", "api_key": "secret"}
    text = "<p>a <b>b c</b> &amp; <!-- d --><code>e</code></p>"
    body = {"q": text, "format": "html", "alternatives": 1, **both}
    answer = server.post("/translate", body)
    best = model.translate([text], n_best=2, format="html")[0].alternatives
    assert [answer["translatedText"], *answer["alternatives"]] == [each.text for each in best]
    assert tags_of(answer["translatedText"]) == tags_of(text)
    chained = server.post("/translate", {**body, "target": "ko", "source": "auto"})
    assert tags_of(chained["translatedText"]) == tags_of(text)
    answer = server.post("/translate", {"q": ["a b", "c"], "glossary": {"a": ["f", "g"]}, **both})
    assert {*"fg"} & {*answer["translatedText"][0]}
    assert "lost" not in answer
    named = server.post("/translate", {"q": "a b", "glossary": "letters", **both})
    assert "h" in named["translatedText"]
    lost = server.post("/translate", {"q": ["a", "a 12"], "glossary": {"a": "Q"}, **both})
    assert lost["lost"] == [["Q"], ["12", "Q"]]
    free = server.post("/translate", {"q": "a 12", "placeholders": False, **both})
    assert "lost" not in free


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
        (
            "/translate",
            {"q": "a", "source": "en", "target": "de", "format": "pdf"},
            400,
            "'format'",
        ),
        ("/translate", {"q": "a", "source": "en", "target": "de", "glossary": 3}, 400, "glossary"),
        (
            "/translate",
            {"q": "a", "source": "en", "target": "de", "glossary": "x"},
            *(400, "no glossary is called 'x'; there are: letters"),
        ),
        (
            "/translate",
            {"q": "a", "source": "en", "target": "ko", "glossary": {"a": "b"}},
            *(400, "a glossary is for one model, and two are chained over de"),
        ),
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


@pytest.fixture(scope="module")
def server_here(trained_run):
    """A client of a server in this process, without keys."""
    with serving(service_of(transduct.load(trained_run))) as client:
        while client("GET", "/health")[0] != 200:  # what warms it takes places in the queue
            time.sleep(0.01)
        yield client


FILES = Path(__file__).parents[1] / "formats" / "files"


def upload(client, name, content, key="secret", **fields):
    """Send a document as a form; returns the status and the answer."""
    part = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    values = {"source": "en", "target": "de", **fields}
    parts = [part % (key.encode(), b"", value.encode()) for key, value in values.items()]
    parts.append(part % (b"file", b'; filename="%s"' % name.encode(), content))
    body, kind = b"".join(parts) + b"--x--\r\n", "multipart/form-data; boundary=x"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, _, answer = client("POST", "/translate_file", body, kind, **headers)
    return status, answer


def test_a_document_is_translated_and_downloaded(server, trained_run):
    model = transduct.load(trained_run)
    for name, fields in (("story.txt", {}), ("letter.docx", {"source": "auto"}), ("a.md", {})):
        content = b"# a b\n" if name == "a.md" else (FILES / name).read_bytes()
        status, answer = upload(server, f"../x/{name}", content, **fields)
        assert status == 200, answer
        path = urlsplit(answer["translatedFileUrl"]).path
        assert re.fullmatch(r"/download_file/[\w-]{43}" + Path(name).suffix, path)
        status, headers, found = server("GET", path)  # without a key: nobody can guess it
        assert (status, headers["Content-Disposition"]) == (200, "attachment")
        document = Document(named_kind(name), name, content)
        assert found == document.translated(model.translate_marked(document.segments))
    guess = path[:-5] + ("b" if path[-5] == "a" else "a") + path[-4:]
    for wrong in (guess, "/download_file/1", "/download_file/..%2Fstory.txt"):
        status, _, answer = server("GET", wrong)
        assert (status, list(answer)) == (404, ["error"])


def test_what_a_document_has_lost_is_named(server):
    status, answer = upload(server, "a.html", b"<p>a <b>b</b> 12</p>")
    assert (status, answer["lost"]) == (200, ["12"])


def bomb():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<a>" + b" " * (33 << 20) + b"</a>")
    return out.getvalue()


ENTITIES = b'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><xliff><source>&c;</source></xliff>'


@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [
        ("a.exe", b"a", 400, "found a file of an unknown kind; its name must end in .txt .md"),
        ("", b"a", 400, "found a file of an unknown kind"),
        ("../a.docx", b"a", 400, "a.docx: damaged (File is not a zip file); save it again"),
        ("a.odt", (FILES / "word.docx").read_bytes(), 400, "a.odt: found no part of a .odt doc"),
        ("a.docx", b"\xd0\xcf\x11\xe0", 400, "a.docx: is encrypted or in an older format"),
        ("a.xlf", ENTITIES, 400, "a.xlf: not a whole XML file (EntitiesForbidden"),
        ("a.docx", bomb(), 413, "a.docx: is larger than"),
    ],
)
def test_a_document_that_cannot_be_translated_is_refused(server, name, content, status, said):
    found, answer = upload(server, name, content)
    assert (found, answer["error"][: len(said)]) == (status, said)
    assert "\n" not in answer["error"]


def test_a_document_needs_a_key_and_its_characters_count(server):
    assert upload(server, "a.txt", b"a b", key="")[0] == 401
    assert upload(server, "a.txt", b"a" * 20, key="small")[0] == 429


def test_without_the_extra_a_document_is_answered_with_the_install_line(server_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "defusedxml", None)
    status, answer = upload(server_here, "a.docx", (FILES / "word.docx").read_bytes(), key="")
    assert status == 400
    assert answer["error"].endswith("; run: pip install 'transduct[documents]'")


def test_a_document_of_many_texts_waits_in_parts_and_a_full_disk_is_no_fault_of_it(
    server_here, monkeypatch
):
    def full(path, content):
        raise TransductError(f"{path}: the disk is full")

    assert upload(server_here, "a.txt", b"a b\n" * 120, key="")[0] == 200  # 50 may wait
    monkeypatch.setattr(downloads, "write_file", full)
    said = "the translation cannot be kept; the server's log says why"
    assert upload(server_here, "a.txt", b"a b\n", key="") == (500, {"error": said})


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
