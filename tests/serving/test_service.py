"""A model over HTTP: the same answers as from Python, helpful errors, and no lost requests."""

import base64
import json
import posixpath
import re
import threading
import time
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import transduct
from tests.families import RECIPES
from tests.helpers import Stub
from tests.interfaces.clients import half_sent, service_of, serving
from tests.pictures import SIDE, bar, png
from tests.tones import encoded, string
from transduct.errors import MissingExtra, NotFinite, TransductError
from transduct.predictors.base import json_value
from transduct.predictors.translation import Translator
from transduct.serving import calls, hosted

TEXTS = ["a b c", "", "d e f g", "h", "a b c d e f g h", "</s>", "🙂"]


@pytest.fixture(scope="module")
def model(trained_run):
    return transduct.load(trained_run)


@pytest.fixture(scope="module")
def client(model):
    with serving(service_of(model, "reverse", 50)) as client:
        while client("GET", "/health")[0] != 200:
            time.sleep(0.01)
        yield client


class Slow(Stub):
    """A model of text that answers when it may."""

    def __init__(self):
        self.begun, self.gate, self.seen = threading.Event(), threading.Event(), []

    def predict(self, inputs, **options):
        self.begun.set()
        assert self.gate.wait(60)
        self.seen += inputs
        return [text.upper() for text in inputs]


# The same answers


def test_translations_are_those_of_python(client, model):
    found = client.post("/translate", {"texts": TEXTS, "beam": 3, "n_best": 2})["translations"]
    for answer, expected in zip(found, model.translate(TEXTS, beam=3, n_best=2), strict=True):
        assert answer["text"] == expected.text
        # no model is asked about a blank text
        assert answer["score"] == pytest.approx(expected.score if expected.text else 0.0, abs=1e-4)
        assert [other["text"] for other in answer["alternatives"]] == [
            a.text for a in expected.alternatives
        ]
    assert client.post("/predict", {"inputs": TEXTS, "options": {"beam": 3}})["outputs"] == [
        a["text"] for a in found
    ]
    assert client.post("/translate", {"texts": []}) == {"translations": []}


def test_translations_begin_as_they_are_told(client, model):
    prefixes = ["d c", "x", "", "a b", "", "", ""]
    found = client.post("/translate", {"texts": TEXTS, "prefixes": prefixes, "beam": 3})[
        "translations"
    ]
    assert [a["text"] for a in found] == [
        t.text for t in model.translate(TEXTS, prefixes=prefixes, beam=3)
    ]
    assert found[0]["text"].startswith("d c")


def test_lines_come_back_and_what_could_not_be_read_is_counted(client):
    text = "a b.\n\n  c d\r\n- b a"
    [found] = client.post("/translate", {"texts": [text], "beam": 1})["translations"]
    each = client.post("/translate", {"texts": ["a b.", "c d", "b a"], "beam": 1})
    assert found["text"] == "{}\n\n  {}\r\n- {}".format(*[t["text"] for t in each["translations"]])
    lost = {"texts": ["a €", "a", "ß€ b"], "beam": 1}
    assert client.post("/translate", lost)["unknown"] == [1, 0, 2]
    assert client.post("/predict", {"inputs": ["a €"]})["unknown"] == [1]
    assert client.post("/score", {"sources": ["€"], "targets": ["a"]})["unknown"] == [1]
    assert client.post("/attention", {"text": "a €"})["unknown"] == [1]
    assert "unknown" not in client.post("/predict", {"inputs": ["a"]})


def test_scores_are_those_of_python(client, model):
    sources, targets = ["a b c", "d e"], ["c b a", "x"]
    found = client.post("/score", {"sources": sources, "targets": targets})["scores"]
    assert found == pytest.approx(model.score(sources, targets), abs=1e-4)


def test_attention_is_that_of_python(client, model):
    expected = model.attention("a b c", "c b a")
    found = client.post(
        "/attention", {"text": "a b c", "target": "c b a", "name": "decoder.0.cross"}
    )
    assert found["names"] == list(expected.weights)
    assert (found["rows"], found["columns"]) == (expected.target, expected.source)
    np.testing.assert_allclose(found["heads"], expected["decoder.0.cross"], atol=1e-4)
    rows, columns, weights = expected.alignment()
    assert (found["alignment"]["rows"], found["alignment"]["columns"]) == (rows, columns)
    np.testing.assert_allclose(found["alignment"]["weights"], weights, atol=1e-4)
    numbers = np.array(found["heads"]).ravel()
    assert [*numbers] == [round(number, 4) for number in numbers]  # as few digits are sent
    own = client.post("/attention", {"text": "a b c"})
    assert own["rows"] == model.attention("a b c").target
    assert own["name"] == "decoder.0.cross"


def events_of(answer):
    """The events of an answer that was streamed."""
    parts = answer.decode().split("\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in parts if each.startswith("data: {")]


@pytest.mark.parametrize("family", RECIPES)
def test_every_family_is_served(family, family_of, tmp_path):
    model = transduct.load(family_of(family)[1])
    with serving(service_of(model, family, 50)) as client:
        while (health := client("GET", "/health"))[0] != 200:
            time.sleep(0.01)
        about = health[2]
        given = {"picture": png(bar("across", 3)), "sound": encoded(string("12"))}.get(
            about["reads"]
        )
        if given is None:
            inputs = ["to be or not\tto be", "that is\tthe question"][: 1 if about["paints"] else 2]
            found, expected = client.post("/predict", {"inputs": inputs}), model.predict(inputs)
            if not about["paints"] and any(map(model.unknown, inputs)):
                assert found.pop("unknown") == [len(model.unknown(text)) for text in inputs]
        else:
            found = client.post("/predict", given, kind="application/octet-stream")
            (tmp_path / "given").write_bytes(given)
            inputs = [str(tmp_path / "given")]
            expected = model.predict(inputs)
        if about["paints"]:
            (tmp_path / "found.png").write_bytes(found)
            with Image.open(tmp_path / "found.png") as picture:
                np.testing.assert_array_equal(picture, model.picture(inputs[0], expected[0]))
        else:
            assert found == {"outputs": json.loads(json.dumps(list(map(json_value, expected))))}
        if family == "scenes":
            assert expected[0]
            assert set(found["outputs"][0][0]) == {"label", "score", "box"}
            assert client.post("/predict?threshold=1.0", given, kind="image/png") == {
                "outputs": [[]]
            }
        if about["paints"] and given is None:
            asked = {"inputs": inputs, "stream": True}
            *parts, whole = events_of(client("POST", "/v1/predict", asked)[2])
            with Image.open(BytesIO(base64.b64decode(whole["picture"]))) as picture:
                np.testing.assert_array_equal(picture, expected[0].pixels)
            codes = [each["codes"] for each in parts]
            assert [*map(len, codes)] == [*range(1, len(codes) + 1)]
            assert all(one == codes[-1][: len(one)] for one in codes)
        elif given is None and not about["translates"]:
            said, _ = client.refused("/v1/predict", {"inputs": inputs, "stream": True}, 400)
            assert said == "only pictures are streamed here; leave stream out"
        if "codes" in model.verbs:
            found = client.post("/v1/predict?codes=true", given, kind="image/png")
            assert found == {"outputs": model.codes(inputs)}
        elif given is not None:
            said, _ = client.refused("/v1/predict?codes=true", given, 400, kind="image/png")
            assert said == "this model makes no codes; leave codes out"
        if about["reads"] == "sound":
            said, _ = client.refused("/v1/inspect", given, 400, kind="audio/wav")
            assert said == "no speech was found; give a recording with speech"
        elif "attention" in model.verbs and (given is not None or about["paints"]):
            looked = model.attention(inputs[0])
            drawn, name = looked.panels(), next(iter(looked))
            if given is None:
                asked = {"text": inputs[0], "view": "panels", "name": name, "model": family}
                found = client.post("/v1/inspect", asked)
            else:
                found = client.post(f"/v1/inspect?name={name}", given, kind="image/png")
            assert found["names"] == list(looked)
            assert found["heads"] == {name: len(weights) for name, weights in looked.items()}
            for shown, panel in zip([*found["panels"], found["map"]], [*drawn, None], strict=True):
                whole = np.frombuffer(base64.b64decode(shown["data"]), "<i2") / 32767
                weights = looked[name] if panel is None else panel.weights
                expected = np.asarray(weights.float()).ravel()
                np.testing.assert_allclose(whole * shown["scale"], expected, atol=1e-4)
                assert panel is None or (shown["title"], shown["query"]) == (
                    panel.title,
                    panel.query,
                )
        elif given is not None:
            said, _ = client.refused("/v1/inspect", given, 415, kind="image/png")
            assert said.startswith("this model shows no attention of files")
        assert about["translates"] == ("translate" in model.verbs)
        assert about["models"][0]["verbs"] == sorted(model.verbs)
        if family in ("sequence", "pictures"):
            [probabilities] = model.probabilities(inputs[:1])
            asked = {"inputs": inputs[:1], "probabilities": True} if given is None else given
            kind = "application/json" if given is None else "image/png"
            path = "/predict" if given is None else "/predict?probabilities=true"
            assert client.post(path, asked, kind=kind)["outputs"] == [probabilities]
        elif given is None and not about["paints"] and "probabilities" not in model.verbs:
            asked = {"inputs": inputs, "probabilities": True}
            said, _ = client.refused("/predict", asked, 400)
            assert said == "this model predicts no labels; leave probabilities out"
        assert client("POST", "/translate", {"texts": []})[0] == (
            200 if about["translates"] else 404
        )


def test_the_page_is_there_and_needs_nothing_from_elsewhere(client):
    status, headers, page = client("GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'; connect-src 'self';" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert not re.search(r"<script>|<style|style=|\son\w+=", page.decode())
    waiting = re.findall('(?:src|href)="(?!data:)(.*?)"', page.decode())
    seen = set()
    while waiting:
        path = waiting.pop()
        status, headers, file = client("GET", f"/{path}")
        assert (status, headers.get_content_charset()) == (200, "utf-8"), path
        seen.add(path)
        text = file.decode()
        if "/vendor/" not in path:
            # the walk has links to the course, and nothing is loaded from there
            loaded = re.sub('const COURSE = ".*?"', "", text)
            assert not re.search(r"[\"'(]https?://", loaded), path
            # texts stay texts
            assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), (
                path
            )
            named = re.findall(
                r"""(?:from|import\(|^import) ?["'](\..*?)["']""", text, re.MULTILINE
            )
            found = [posixpath.normpath(f"{posixpath.dirname(path)}/{name}") for name in named]
            waiting += [each for each in found if each not in seen]
    assert {"web/app.js", "web/inside/index.js", "web/words.js", "web/style.css"} <= seen


@pytest.mark.parametrize("path", ["../native.py", "nothing.js", "vendor", "vendor/README.md", ""])
def test_of_the_page_s_folder_only_its_files_are_served(client, path):
    for each in (path, path.replace(".", "%2e"), f"%2e%2e/web/{path}", f"/{path}"):
        assert client("GET", f"/web/{each}")[0] == 404


def test_health_says_what_is_served(client):
    status, headers, about = client("GET", "/health")
    assert (status, headers["Retry-After"]) == (200, None)
    expected = {"status": "ok", "model": "reverse", "version": transduct.__version__}
    expected |= {"reads": "text", "paints": False, "translates": True, "key": False}
    one = {"name": "reverse", "task": "", "reads": "text", "pairs": 0, "status": "ok"}
    one |= {"paints": False, "verbs": sorted(Translator.verbs)}
    assert about == expected | {"models": [one]}


def test_it_is_warming_before_it_is_ready():
    model = Slow()
    with serving(service_of(model, "slow", 5)) as client:
        status, headers, about = client("GET", "/health")
        assert (status, headers["Retry-After"], about["status"]) == (503, "1", "warming")
        model.gate.set()
        while client("GET", "/health")[0] != 200:
            time.sleep(0.01)
        assert model.seen == hosted.WARMING


# What is wrong


BOTH = "the request: give 'q' or 'texts', and not both"
SURROGATE = "the request: '%s' contains an unpaired surrogate"
WRONG = {
    "/translate": [
        ({}, BOTH),
        ({"q": "a", "texts": []}, BOTH),
        ({"texts": ["a"], "prefixes": "a"}, "the request: 'prefixes' must be a list"),
        ({"texts": ["a"], "prefixes": []}, "found 1 texts and 0 prefixes; give one for each"),
        ({"texts": ["a"], "prefixes": ["☃"]}, "prefix 1: holds what no translation does"),
        ({"texts": ["a"], "beem": 2}, "unknown key 'decoding.beem'; did you mean 'beam'?"),
        ({"texts": ["a"], "beam": 2, "n_best": 3}, "n_best is 3, the beam only 2"),
        (b'{"texts": ["a"], "temperature": 1e999}', "temperature is inf, must be between"),
        ({"texts": ["a"], "\ud800": 1}, SURROGATE % "?"),
        ({"texts": ["a"] * 51}, "found 51 inputs, at most 50 may wait; send fewer at once"),
        # before it is looked at
        ({"texts": [3] * 2_000}, "found 2000 inputs, at most 50 may wait; send fewer at once"),
        ({"texts": ["\ud800"]}, SURROGATE % "texts"),
    ],
    "/v1/translate": [({}, "the request: missing key 'texts'")],
    "/predict": [({"inputs": ["a"], "options": {"texts": 1}}, "'texts' is not an option; leave")],
    "/attention": [
        ({"text": "\ud800"}, SURROGATE % "text"),
        ({"text": "a", "name": "\ud800"}, SURROGATE % "name"),
        ({"text": "a", "name": "x"}, "unknown name 'x'; known are: encoder.0.self, "),
    ],
    "/score": [
        ({"sources": ["a"], "targets": []}, "found 1 sources and 0 targets; give as many of each"),
        ({"sources": ["a"], "targets": ["a " * 99]}, "pair 1: 99 tokens, the model takes 39; sho"),
    ],
}


@pytest.mark.parametrize("path", WRONG)
def test_what_is_wrong_is_said_in_one_line(client, path):
    for body, said in WRONG[path]:
        assert said in client.refused(path, body, 400)[0]


def test_what_is_not_there_or_not_json_is_refused(client):
    assert client("GET", "/nothing")[::2] == (404, {"error": "Not Found"})
    status, headers, said = client("GET", "/translate")
    assert (status, headers["Allow"], said) == (405, "POST", {"error": "Method Not Allowed"})
    for kind in ("text/plain", "application/jsonp", ""):
        said, _ = client.refused("/translate", {"texts": []}, 415, kind=kind)
        assert said == "send JSON, with the header 'Content-Type: application/json'"
    assert client.post("/translate", {"texts": []}, kind="Application/JSON; charset=utf-8") == {
        "translations": []
    }
    assert client("POST", "/translate/", {"texts": []})[::2] == (
        404,
        {"error": "Not Found"},
    )  # no redirection


def test_what_is_too_large_is_refused(client, monkeypatch):
    said, _ = client.refused("/translate", {"texts": ["a" * (2 << 20)]}, 413)
    assert said == "the request is larger than 2 MiB; send less at once"
    asked_for = (
        "characters, those asked for counted and times the beam; at most 40,000 are "
        "taken: send it in parts"
    )
    for body in ({"texts": ["a" * 8_001], "beam": 5}, {"texts": ["a" * 2_600], "beam": 16}):
        assert asked_for in client.refused("/translate", body, 413)[0]
    assert (
        asked_for in client.refused("/score", {"sources": ["a"], "targets": ["a" * 40_000]}, 413)[0]
    )
    assert client("POST", "/translate", {"texts": ["a b c d " * 1_000], "beam": 1})[0] == 200
    monkeypatch.setattr(hosted, "LARGEST_MAP", 8)
    said, _ = client.refused("/attention", {"text": "a b c d", "target": "d c b a"}, 413)
    assert said == "more than 8 weights a head are too many to be shown; shorten the text"
    # the source's own map is larger than the alignment
    monkeypatch.setattr(hosted, "LARGEST_MAP", 14)
    client.refused("/attention", {"text": "a b c d", "target": "a", "name": "encoder.0.self"}, 413)
    monkeypatch.setattr(calls, "HELD", 1 << 19)
    assert (
        "too much is waiting" in client.refused("/translate", {"texts": ["a" * (1 << 15)]}, 429)[0]
    )
    assert client.post("/translate", {"texts": []}) == {"translations": []}


def test_a_body_may_be_as_large_as_the_limit(client, monkeypatch):
    body = b'{"texts": []}'
    monkeypatch.setattr(calls, "LARGEST_JSON", len(body))
    assert client.post("/translate", body) == {"translations": []}
    assert "the request is larger than" in client.refused("/translate", body + b" ", 413)[0]


def test_a_mistake_of_one_harms_no_other(client):
    expected = client.post("/score", {"sources": ["a b"], "targets": ["b a"]})
    answers = []

    def ask(targets):
        answers.append(client("POST", "/score", {"sources": ["a b"], "targets": targets})[::2])

    threads = [threading.Thread(target=ask, args=([target],)) for target in ["b a", "x " * 99] * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in answers) == [200] * 5 + [400] * 5
    assert all(
        answer["scores"] == pytest.approx(expected["scores"])
        for status, answer in answers
        if status == 200
    )


def test_each_input_gets_its_answer_or_its_error(client, model):
    found = client.post(
        "/score", {"sources": ["a b", "a", "c"], "targets": ["b a", "x " * 99, "c"]}
    )
    expected = model.score(["a b", "c"], ["b a", "c"])
    assert [found["scores"][0], found["scores"][2]] == pytest.approx(expected, abs=1e-4)
    assert found["scores"][1] is None
    assert found["errors"] == [None, "pair 2: 99 tokens, the model takes 39; shorten it", None]
    found = client.post("/translate", {"texts": ["a", "b"], "prefixes": ["☃", "c"]})
    assert found["translations"][0] is None
    assert found["translations"][1]["text"].startswith("c")
    assert found["errors"][0].startswith("prefix 1: holds what no translation does")
    assert found["errors"][1] is None
    said, _ = client.refused("/translate", {"texts": ["a", "b"], "prefixes": ["☃", "☃"]}, 400)
    assert said.startswith("prefix 1: ")


def test_a_long_text_is_interrupted_and_answered_as_alone(model):
    """The worker is in the long text when the short one comes, which is answered first."""
    long, order = " ".join("abcdefgh"[i * i % 7] for i in range(2_000)), []
    with serving(service_of(model, "reverse", 50)) as client:

        def ask():
            found = client.post("/translate", {"texts": [long], "beam": 4})
            order.append(found["translations"][0]["text"])

        thread = threading.Thread(target=ask)
        thread.start()
        begun = re.compile(rb"transduct_batch_seconds_count ([3-9]|\d\d)")
        while thread.is_alive() and not begun.search(client("GET", "/metrics")[2]):
            time.sleep(0.001)  # two slices to warm it, and one of the text
        short = client.post("/translate", {"texts": ["a b"], "beam": 4})["translations"][0]["text"]
        order.append(short)
        thread.join()
    assert order == [model.predict([text], beam=4)[0] for text in ("a b", long)]


def test_a_text_that_cannot_be_attended_to_is_refused_before_it_is_translated(
    client, model, monkeypatch
):
    monkeypatch.setattr(model, "translate", lambda *_, **__: 1 / 0)
    said, _ = client.refused("/attention", {"text": "a " * 100}, 400)
    assert said == "attention takes at most 39 tokens a side; shorten the text"


def test_small_requests_find_room_where_large_ones_hold_all(client, monkeypatch):
    body = {"inputs": ["a" * (1 << 15)]}
    monkeypatch.setattr(calls, "HELD", calls.WEIGHT * 4096)
    assert "too much is waiting" in client.refused("/predict", body, 429)[0]
    with half_sent(client, {"inputs": ["a" * 130_900]}):
        time.sleep(0.2)  # until it has been read
        assert client("POST", "/translate", {"texts": []})[0] == 200
        client.refused("/translate", {"texts": ["a" * 200]}, 429)


def test_a_file_is_taken_as_the_body_and_its_damage_is_told_without_a_path(family_of):
    with serving(service_of(transduct.load(family_of("pictures")[1]), "pictures", 50)) as client:
        refused = (
            client.refused("/predict", {"inputs": ["/etc/passwd"]}, 415),
            client.refused("/predict", b"--a", 415, kind="Multipart/form-data; boundary=a"),
        )
        for said, _ in refused:
            assert said == (
                "this model reads a picture; send the file itself as the body: "
                "curl --data-binary @FILE URL/predict"
            )
        said, _ = client.refused("/predict", b"no picture", 400, kind="image/png")
        assert said.startswith("the picture: ")
        for query, wrong in (
            ("[1,2]", "[1, 2]"),
            ("0x" + "f" * 99, "'0xfff"),
            ("[" * 9_000, "'[["),
        ):
            said, _ = client.refused(
                f"/predict?threshold={query}", png(bar("across", 1, SIDE)), 400, kind="image/png"
            )
            assert said.startswith(f"threshold is {wrong}")
            assert said.endswith(", expected a number or a short word")
        said, _ = client.refused(
            "/predict?workers=3", png(bar("across", 1, SIDE)), 400, kind="image/png"
        )
        assert said == "'workers' is reserved for the server's operator; leave it out"


def test_of_several_pictures_only_one_is_painted(family_of):
    painter = transduct.load(family_of("text to image")[1])
    with serving(service_of(painter, "painter", 50)) as client:
        for inputs in ([], ["a", "b"]):
            said, _ = client.refused("/predict", {"inputs": inputs}, 400)
            assert said == f"found {len(inputs)} inputs, the answer is one picture; send one"


def test_a_model_that_does_not_work_is_not_the_fault_of_the_file():
    class Broken(Stub):
        reads = "picture"

        def predict(self, inputs):
            raise NotFinite

    with serving(service_of(Broken(), "broken", 50)) as client:
        assert client.refused("/predict", b"file", 500, kind="image/png")[0] == str(NotFinite())


def test_a_library_that_the_server_lacks_is_not_the_fault_of_the_file(caplog):
    class Lacking(Stub):
        reads = "picture"

        def predict(self, inputs):
            raise MissingExtra("Pillow is not installed; run: pip install 'transduct[vision]'")

    with serving(service_of(Lacking(), "lacking", 50)) as client:
        said, _ = client.refused("/predict", b"file", 500, kind="image/png")
    assert said == "Pillow is not installed; run: pip install 'transduct[vision]'"
    assert said in caplog.text


@pytest.mark.parametrize("error", [NotFinite(), ZeroDivisionError("ours")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_wrong_with_the_model_is_not_the_client_s_fault(error):
    class Broken(Stub):
        def predict(self, inputs):
            if "a b" in inputs:
                raise error
            return inputs

    with serving(service_of(Broken(), "broken", 50)) as client:
        said, _ = client.refused("/predict", {"inputs": ["a b"]}, 500)
        expected = (
            str(error)
            if isinstance(error, TransductError)
            else "internal error; the server's log has the details"
        )
        assert said == expected
        assert client("GET", "/health")[0] == 200
        assert (
            'transduct_requests_total{model="broken",path="/predict",status="500"} 1.0'
            in client("GET", "/metrics")[2].decode()
        )


@pytest.mark.parametrize("error", [NotFinite(), MemoryError("no more")])
def test_a_model_that_cannot_be_warmed_is_broken(error, caplog):
    class Broken(Stub):
        def predict(self, inputs):
            raise error

    with serving(service_of(Broken(), "broken", 50)) as client:
        while (health := client("GET", "/health"))[0] == 503:
            time.sleep(0.01)
    assert (health[0], health[2]["status"]) == (500, "broken")
    assert f"the server is broken: {error}" in caplog.text


def test_a_model_that_cannot_say_anything_to_a_single_text_is_warm():
    class Pairs(Stub):
        def predict(self, inputs):
            if not all("\t" in text for text in inputs):
                raise TransductError("text 1: a second text is missing")
            return inputs

    with serving(service_of(Pairs(), "pairs", 1)) as client:
        while client("GET", "/health")[0] == 503:
            time.sleep(0.01)
        assert client.post("/predict", {"inputs": ["a\tb"]}) == {"outputs": ["a\tb"]}


def test_who_brings_no_key_is_refused_where_there_are_some(model):
    with serving(service_of(model, "reverse", 50, ["one", "two"])) as client:
        for given in (
            None,
            "Bearer three",
            "Bearer ",
            "Bearer é",
            "one",
            "Basic one",
            "Bearer one two",
        ):
            headers = {} if given is None else {"Authorization": given}
            said, told = client.refused("/translate", {"texts": ["a"]}, 401, **headers)
            assert told["WWW-Authenticate"] == "Bearer"
            assert said == "no such key; send the header 'Authorization: Bearer KEY'"
        for given in ("Bearer one", "bearer two"):
            client.post("/translate", {"texts": ["a"]}, Authorization=given)
        assert client("GET", "/health")[0] in (200, 503)


# Too much, too long, gone


def test_the_thread_that_works_has_the_device_of_the_one_that_loaded(trained_run, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    service = service_of(transduct.load(trained_run, "cpu"), "reverse", 50)
    with serving(service) as client:
        found = client.post("/predict", {"inputs": ["a b"]})["outputs"]
    assert found == transduct.load(trained_run, "cpu").predict(["a b"])
    assert chosen == [1]


def test_more_than_may_wait_is_turned_away_at_once():
    model = Slow()
    with serving(service_of(model, "slow", 4)) as client:
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(client.post("/predict", {"inputs": ["a"] * 4}))
        )
        thread.start()  # behind what warms it
        while b"transduct_waiting 4.0" not in client("GET", "/metrics")[2]:
            time.sleep(0.01)
        said, headers = client.refused("/predict", {"inputs": ["b"]}, 429)
        assert said == f"too much is waiting; come back in {headers['Retry-After']} s"
        assert int(headers["Retry-After"]) >= 1
        model.gate.set()
        thread.join()
        assert answers == [{"outputs": ["A"] * 4}]
        assert client.post("/predict", {"inputs": ["b"]}) == {"outputs": ["B"]}


def test_what_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(calls, "PATIENCE", 0.1)
    model = Slow()
    with serving(service_of(model, "slow", 4)) as client:
        assert model.begun.wait(60)  # with what warms it
        said, headers = client.refused("/predict", {"inputs": ["given up"]}, 504)
        assert said == "not done within 0 s; send less at once"
        assert int(headers["Retry-After"]) >= 1
        monkeypatch.setattr(calls, "PATIENCE", 60.0)
        model.gate.set()
        assert client.post("/predict", {"inputs": ["b"]}) == {"outputs": ["B"]}
    assert "b" in model.seen
    assert "given up" not in model.seen


def test_who_does_not_send_all_is_given_up(client, monkeypatch):
    monkeypatch.setattr(calls, "PATIENCE", 0.1)
    with half_sent(client, {"inputs": ["a"]}) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_who_has_not_sent_all_holds_no_more_than_was_sent(client, monkeypatch):
    body = {"inputs": ["a" * (1 << 15)]}
    monkeypatch.setattr(calls, "HELD", calls.WEIGHT * len(json.dumps(body)))
    with half_sent(client, body):
        time.sleep(0.2)  # until it has been read
        assert client("POST", "/translate", {"texts": ["a"]})[0] == 200


def test_who_leaves_before_all_is_sent_is_no_mistake_of_ours(model):
    with serving(service_of(model, "reverse", 50)) as client:
        with half_sent(client, {"inputs": ["a"]}):
            pass
        while b'status="499"} 1.0' not in (said := client("GET", "/metrics")[2]):
            time.sleep(0.01)
        assert b'status="500"' not in said


def test_who_hangs_up_is_not_worked_for():
    model = Slow()
    with serving(service_of(model, "slow", 4)) as client:
        with half_sent(client, {"inputs": ["gone"]}, 0):
            while b"transduct_waiting 1.0" not in client("GET", "/metrics")[2]:
                time.sleep(0.01)
        while b"transduct_waiting 0.0" not in client("GET", "/metrics")[2]:
            time.sleep(0.01)
        model.gate.set()
        assert client.post("/predict", {"inputs": ["b"]}) == {"outputs": ["B"]}
        assert b'status="499"} 1.0' in client("GET", "/metrics")[2]
    assert set(model.seen) == {*hosted.WARMING, "b"}
