"""Generated corpora are found by name, and what a recipe says of them is checked."""

from types import SimpleNamespace

import pytest

from tests.refusals import refusal
from transduct.data import samples
from transduct.data.samples import TextCorpus, check_generated, generate


def test_without_any_corpus_the_error_says_how_to_install_some(monkeypatch):
    monkeypatch.setattr(samples, "added", lambda group: {})
    with refusal(r"'copy'; run pip install --editable \. to install"):
        generate("copy", 1)


def test_an_unknown_corpus_is_refused():
    with refusal(r"no generated corpus is called 'x'; known are: .*number_names"):
        generate("x", 1)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"generate": "copy"}, "count is 0; give how many rows to generate, only with generate"),
        ({"count": 3}, "count is 3; give how many rows to generate, only with generate"),
        ({"part": "valid"}, "part is 'valid'; give it only with generate"),
    ],
)
def test_a_count_and_a_part_go_with_what_is_generated(given, message):
    check_generated(SimpleNamespace(generate="copy", count=3, part="valid"), TextCorpus, "rows")
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_generated(
            SimpleNamespace(**{"generate": None, "count": 0, "part": "train", **given}),
            TextCorpus,
            "rows",
        )


def test_more_pairs_than_a_part_holds_are_refused():
    with refusal("cannot generate 1,000,001 pairs of 'copy'; ask for at most 1,000,000"):
        generate("copy", samples.MOST + 1)
