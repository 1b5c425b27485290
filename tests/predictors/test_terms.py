"""Placeholders come as often as in the source, terms of a glossary are written; what is missing is
named."""

from collections import Counter

import pytest

from tests.helpers import randomise, tiny
from tests.predictors.test_translation import make
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.inference.settings import DecodingConfig
from transduct.predictors.terms import PLACEHOLDER, Terms, phrases_of, read_glossary, terms_of
from transduct.predictors.translation import Translator

KINDS = [
    "%s", "%1$s", "%(name)s", "%5.2f", "%@", "{name}", "{}", "{0}", "{{name}}", "{{ a b }}",
    "${name}", '<x id="3"/>', "</g>", "https://a.org/b?c=d", "www.a.org", "me.too@a-b.org", "12",
    "3,5", "1.000", "10:30",
]  # fmt: skip
OF_TEMPLATES = ["%%", "%{name}", "{% if a %}"]


@pytest.mark.parametrize("kind", KINDS + OF_TEMPLATES)
def test_each_kind_is_found_whole(kind):
    assert PLACEHOLDER.findall(f"see {kind}, or ({kind}). {kind}") == [kind] * 3


@pytest.mark.parametrize("text", ["100% sure", "a 5%ige b", "a < b > c", "{ a", "a@b", "%", "a_b"])
def test_what_is_none(text):
    assert [each for each in PLACEHOLDER.findall(text) if not each.isdigit()] == []


@pytest.mark.parametrize("letters", ["a", "{", "<a", "a@", "1.", "%", "a.a@b-", "http://.", "%(a"])
def test_long_texts_are_read_at_once(letters):
    """A pattern that goes back over the text would take minutes."""
    PLACEHOLDER.findall(letters * 50_000)


def test_lost_names_what_comes_more_or_less_often():
    terms = terms_of(None, True)("%s of 3,5 {a} {a}")
    assert terms == Terms({"%s": 1, "3,5": 1, "{a}": 2}, {})
    assert terms.lost("{a} {a} 3.5 %s") == ()
    assert terms.lost("{a} 3.5 %s %s") == ("%s", "{a}")
    assert terms.lost("") == ("%s", "3,5", "{a}")
    assert terms_of(None, True)("none") is None
    assert terms_of({"a": "b"}, False)("%s") is None


@pytest.mark.parametrize(
    ("term", "text", "count"),
    [
        ("Bank", "Die Bank, eine Bank.", 2),
        ("Bank", "Banken, bank", 0),
        ("bank", "Bank bank", 2),
        ("Deutsche Bank", "Deutsche Bank", 1),
        ("은행", "은행에서 은행", 2),
        ("银行", "在银行里", 1),
        ("C++", "in C++.", 1),
        ("Deutsche Bank", "Deutsche\u00a0Bank, Deutsche\n Bank", 2),
    ],
)
def test_terms_are_whole_words_of_the_source(term, text, count):
    terms = terms_of({term: "x"}, False)(text)
    assert (terms.words[("x",)] if terms else 0) == count


def test_the_longest_term_counts():
    terms = terms_of({"Bank": "a", "Deutsche Bank": "b"}, False)("Deutsche Bank und Bank")
    assert terms.words == Counter({("b",): 1, ("a",): 1})
    # a longer term in other letters does not hide one that is there
    terms = terms_of({"bank": "a", "Deutsche Bank": "b"}, False)("die deutsche Bank")
    assert terms.words == Counter({("a",): 1})


def test_any_form_will_do_with_any_ending():
    terms = terms_of({"Bank": ["Ufer", "Böschung"]}, False)("Bank Bank")
    assert terms.lost("Am Ufer, Böschungen") == ()
    assert terms.lost("Ufer") == terms.lost("Ufer im Steilufer") == ("Ufer",)
    assert terms_of({"Ufer": "shore"}, False)("Ufer").lost("Shore and bank") == ()  # at the start


@pytest.mark.parametrize(
    ("glossary", "problem"),
    [
        (["a"], "the glossary is .*, expected terms and translations"),
        ({"a": 3}, "the glossary has 3 for 'a', expected a text or a list of texts"),
        ({"a": []}, r"the glossary has \[\] for 'a'"),
        ({"a": " "}, "the glossary has ' ' for 'a'"),
        ({" ": "a"}, "the glossary has 'a' for ' '"),
        ({"a": ["b", None]}, "the glossary has"),
    ],
)
def test_what_is_no_glossary_is_refused(glossary, problem):
    with refusal(problem):
        terms_of(glossary, False)


def test_a_glossary_is_read_from_a_file(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("# a comment\n\nBank\tUfer\tBöschung\t\nsee \t lake\n", "utf-8")
    assert read_glossary(file) == {"Bank": ["Ufer", "Böschung"], "see": ["lake"]}
    file.write_text("a\tb\nBank\n")
    with refusal("terms.tsv:2: expected a term, a tab and its translation"):
        read_glossary(file)


def test_what_the_tokenizer_cannot_write_is_not_forced(capitals):
    terms = Terms({"%s": 1, "{A}": 1}, {("A", "zz"): 2})
    assert len(phrases_of(terms, capitals.target_tokenizer)) == 2


def test_a_glossary_is_followed(capitals):
    """Every term occurs, whatever the model would have said."""
    glossary = {"a": "P", "b": ["O", "N"], "c d": "M"}
    texts = ["a e f", "e b a f", "c d e", "a b c d", "e f g"]
    found = capitals.translate(texts, glossary=glossary)
    wanted = [["P"], ["P", "O|N"], ["M"], ["P", "O|N", "M"], []]
    for each, words in zip(found, wanted, strict=True):
        assert all({*forms.split("|")} & {*each.text.split()} for forms in words)
        assert each.lost == ()
    plain = capitals.translate(texts)
    assert plain[4] == found[4]
    assert not any("P" in each.text for each in plain)  # a control


def test_a_glossary_that_the_model_follows_changes_nothing(capitals):
    texts = ["a e f", "e b a f"]
    plain = capitals.translate(texts)
    same = [each.text for each in plain if "A" in each.text.split()]
    found = capitals.translate(texts, glossary={"a": "A"})
    assert same
    assert [each for each in found if each.text in same] == [e for e in plain if e.text in same]


def test_each_kind_comes_as_often():
    """A model that knows nothing, over words."""
    tokenizer = Tokenizer.train([" ".join("abcdefgh"), *KINDS] * 2, "word", 100)
    sizes = {"source_size": tokenizer.size, "target_size": tokenizer.size, "tie": "none"}
    module = randomise(tiny(**sizes, max_length=60), spread=0.4)
    model = Translator(module, tokenizer, tokenizer, DecodingConfig(beam=4))
    kinds = [kind for kind in KINDS if " " not in kind for _ in range(2)]
    texts = [(f"a {kind} b", f"{kind} c {kind} d")[n % 2] for n, kind in enumerate(kinds)]
    counts = []
    for n, each in enumerate(model.translate(texts, placeholders=True)):
        count, wanted = (x.split().count(kinds[n]) for x in (each.text, texts[n]))
        assert count >= wanted
        assert each.lost == (() if count == wanted else (kinds[n],))
        # which this model writes again and again
        assert n % 2 == 0 or each.lost == () or kinds[n] == "12"
    for kind, text, each in zip(kinds, texts, model.translate(texts), strict=True):
        counts.append(each.text.count(kind) != text.count(kind))
    assert all(map(any, zip(counts[::2], counts[1::2]))), "the control"


def test_letters_are_forced_too():
    """A model that knows nothing, over bytes."""
    kinds = ["%s", "{name}", "{{ a b }}", '<x id="3"/>']
    found = make("byte", max_length=60).translate(
        [f"a {k} b {k}" for k in kinds], placeholders=True
    )
    assert [(each.lost, each.text.count(k)) for each, k in zip(found, kinds)] == [((), 2)] * 4


def test_what_cannot_be_written_is_named(capitals):
    [found] = capitals.translate(["a %s b 12"], placeholders=True)
    assert found.lost == ("%s", "12")
    [found] = capitals.translate(["<p>a {x} b</p><p>c 7</p>"], format="html")
    assert found.lost == ("{x}", "7")
    [found] = capitals.translate(["a {x}"], glossary={"a": "zz"})
    assert found.lost == ("zz",)
    assert capitals.translate(["a %s"])[0].lost == ()  # nobody asked


def test_n_best_lists_name_what_each_has_lost(capitals):
    [found] = capitals.translate(["a b"], n_best=3, glossary={"a": "P"})
    assert len(found.alternatives) == 3
    assert all((each.lost == ()) == ("P" in each.text) for each in found.alternatives)
    assert found.alternatives[0].text == found.text
