"""The page of `transduct inspect` holds all that it needs; a browser reads it in
tests/serving/web/test_inside.py."""

import json
import re

import pytest

import transduct
from tests.refusals import refusal
from transduct.interfaces.inspect import bundled, closed, inspect
from transduct.predictors.inside import everything

TEXT = "a b </script> c"
MACHINE = {"device": "cpu", "precision": "float32"}


def test_the_page_holds_all_views_and_every_module_it_imports(trained_run, tmp_path):
    out = tmp_path / "page.html"
    inspect(str(trained_run), TEXT, out, MACHINE, beam=2)
    page = out.read_text(encoding="utf-8")
    [data] = re.findall('<script type="application/json" id="inside">(.*?)</script>', page)
    expected = everything(transduct.load(trained_run), TEXT, trained_run / "model", beam=2)
    assert json.loads(data) == json.loads(
        json.dumps({"model": str(trained_run), "text": TEXT, "views": expected})
    )
    assert page.count("<script") == page.count("</script>") == 3
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="(?!data:|\$)', page.split("<script>")[0])
    assert "<title>a b &lt;/script&gt; c - transduct</title>" in page


def test_modules_come_after_what_they_import():
    found = bundled("inside/file.js", {})
    assert list(found)[-1] == "inside/file.js"
    before = set()
    for name, module in found.items():
        wanted = set(re.findall(r"= modules\['([^']+)'\]", module))
        assert wanted <= before
        assert not re.search(r"^(import|export)\b", module, re.MULTILINE)
        before.add(name)
    assert "vendor/preact.js" in found
    assert "html: fe" in found["vendor/preact.js"]
    assert "return {Views: Views}" in found["inside/views.js"]
    assert closed("a </script> b") == "a <\\/script> b"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (TEXT, "page.txt", "the page is HTML; call it NAME.html"),
        (TEXT, "none/page.html", "there is no folder"),
        (" ", "page.html", "the text is empty; write a sentence, in quotes"),
    ],
)
def test_what_makes_no_page_is_refused_before_the_model_is_loaded(tmp_path, text, name, message):
    with refusal(message):
        inspect("nowhere", text, tmp_path / name, MACHINE)


def test_a_model_that_reads_pictures_is_refused(tmp_path, monkeypatch, trained_run):
    from types import SimpleNamespace

    from transduct.interfaces import inspect as module

    monkeypatch.setattr(module, "load", lambda *_: SimpleNamespace(reads="picture"))
    with refusal("it reads no text; see: transduct predict --help"):
        inspect(str(trained_run), TEXT, tmp_path / "page.html", MACHINE)
