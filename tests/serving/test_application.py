"""The application, as Ray Serve and servers of ASGI applications take it."""

import pytest
from starlette.testclient import TestClient

import transduct
from transduct.errors import TransductError
from transduct.serving.application import application


def test_the_application_serves_its_models(trained_run, tmp_path):
    with TestClient(application([f"en-de={trained_run}"], prefix="/mt")) as client:
        answer = client.post("/mt/translate", json={"q": "a b", "source": "en", "target": "de"})
        assert answer.json() == {"translatedText": transduct.load(trained_run).predict(["a b"])[0]}
    for wrong in ("terms.tsv", "=terms.tsv", "terms="):
        with pytest.raises(TransductError, match=f"--glossary is '{wrong}', expected NAME=FILE"):
            application([str(trained_run)], glossary=[wrong])
    with pytest.raises(TransductError, match=r"--files is .*none, which is no folder; make it"):
        application([str(trained_run)], files=tmp_path / "none")
    with pytest.raises(TransductError, match=r"x: cannot take --suggestions \(No such .*another"):
        application([str(trained_run)], suggestions=tmp_path / "none" / "x")


def test_applications_with_one_folder_share_documents(trained_run, tmp_path):
    """Also behind a prefix; without the folder nobody finds the other's document."""
    models, form = [f"en-de={trained_run}"], {"source": "en", "target": "de"}
    one, other = (application(models, prefix="/mt", files=tmp_path) for _ in range(2))
    with TestClient(one) as client:
        file = {"file": ("a.md", b"# a b\n")}
        answer = client.post("/mt/translate_file", data=form, files=file).json()
    url = answer["translatedFileUrl"]
    assert url.startswith("http://testserver/mt/download_file/")
    with TestClient(other) as client:
        [text] = transduct.load(trained_run).predict(["a b"])
        assert client.get(url).text == f"# {text}\n"
    with TestClient(application(models, prefix="/mt")) as client:
        assert client.get(url).status_code == 404
