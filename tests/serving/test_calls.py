"""Bodies that are wrong; `test_front.py` counts what is read of those that are too large."""

import pytest

from tests.helpers import Stub
from tests.interfaces.clients import service_of, serving
from transduct.serving import calls, front
from transduct.serving.libretranslate import Suggest
from transduct.serving.native import Predict
from transduct.serving.requests import Problem

FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def client():
    with serving(service_of(Stub(predict=lambda inputs: inputs))) as client:
        yield client


@pytest.mark.parametrize(
    ("kind", "content", "status", "said"),
    [
        (calls.JSON, b"{", 400, "the request is not valid JSON: "),
        (calls.JSON, b"\xff", 400, "the request is not valid JSON: "),
        (calls.JSON, b'{"q": NaN}', 400, "NaN is not a number"),
        (calls.JSON, b"[]", 400, "the request is JSON, but no object; send names and "),
        (calls.JSON, b"[" * 100_000, 400, "the request is not valid JSON: "),
        (calls.JSON, b'{"q": 1}', 400, "the request: 'q' must be text"),
        (f"{calls.JSON}; charset=latin-1", b"{}", 415, "the charset is 'latin-1'; send UTF-8"),
        (FORM, b"q=%ff", 400, "the request is not a valid form: "),
        (calls.MULTIPART, b"--x", 400, "the request is not a valid form: "),
        ("text/plain", b"", 415, "send JSON, with the header 'Content-Type: application/json'"),
    ],
)
def test_a_body_that_is_wrong_is_refused_in_one_line(client, kind, content, status, said):
    assert said in client.refused("/detect", content, status, kind=kind)[0]


def test_a_body_that_is_packed_is_refused(client):
    packed = {"Content-Encoding": "gzip"}
    said, _ = client.refused("/detect", b"\x1f\x8b", 415, **packed)
    assert said == "the content is encoded by 'gzip'; send it as it is"


def test_a_form_may_name_a_field_several_times():
    assert calls._form(b"text=a&text=b&target_lang=DE&tags[]=x") == {
        "text": ["a", "b"],
        "target_lang": "DE",
        "tags": ["x"],
    }


def test_what_a_record_lacks_or_does_not_know_is_named():
    with pytest.raises(Problem, match="the request: missing key 's'") as problem:
        calls.checked(Suggest, {"q": "a", "source": "", "target": ""})
    assert problem.value.param == "s"
    with pytest.raises(Problem, match=r"unknown key 'option'; did you mean 'options'\?"):
        calls.checked(Predict, {"inputs": [], "option": 1})


def test_a_server_that_ends_says_so(monkeypatch):
    monkeypatch.setattr(front, "LINGER", 0.0)
    service = service_of(Stub(predict=lambda inputs: inputs))
    with serving(service) as client:
        service.ending = True
        said, headers = client.refused("/predict", {"inputs": ["a"]}, 503)
    assert (said, headers["Retry-After"], headers["Connection"]) == (
        "the server is ending; ask it again in a second",
        "1",
        "close",
    )
