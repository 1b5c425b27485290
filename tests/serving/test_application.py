"""The application, as Ray Serve and servers of ASGI applications take it."""

import pytest
from starlette.testclient import TestClient

import transduct
from transduct.errors import TransductError
from transduct.serving.application import application


def test_the_application_serves_its_models(trained_run):
    with TestClient(application([f"en-de={trained_run}"], prefix="/mt")) as client:
        answer = client.post("/mt/translate", json={"q": "a b", "source": "en", "target": "de"})
        assert answer.json() == {"translatedText": transduct.load(trained_run).predict(["a b"])[0]}
    with pytest.raises(TransductError, match="--waiting is 0, must be at least 1"):
        application([str(trained_run)], waiting=0)
    for wrong in ("terms.tsv", "=terms.tsv", "terms="):
        with pytest.raises(TransductError, match=f"--glossary is '{wrong}', expected NAME=FILE"):
            application([str(trained_run)], glossary=[wrong])
