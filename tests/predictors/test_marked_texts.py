"""Texts with tags through a model: the same tags come back, well nested, where it looked."""

import random
from xml.etree import ElementTree

import pytest

from tests.formats.test_marked import assert_nested, read, shown
from tests.formats.test_markup import tags_of
from tests.predictors.test_translation import make
from tests.recipes import LETTERS, letters
from tests.refusals import refusal
from transduct.formats.marked import Mark, plain


def html(random_):
    """A sentence with tags inside each other, comments, entities and code."""

    def inside(depth):
        parts = []
        for _ in range(random_.randrange(1, 4)):
            kind, name = random_.random(), random_.choice(["b", "i", "em", "a", "sup"])
            if kind < 0.4 and depth < 3:
                parts.append(f"<{name}>{inside(depth + 1)}</{name}>")
            elif kind < 0.5:
                parts.append(random_.choice(["<!-- a -->", "<code>a</code>", "&copy;", "&amp;"]))
            else:
                parts.append(" ".join(random_.choices(LETTERS, k=2)))
        return " ".join(parts)

    return f"<p>{inside(0)}<br>{inside(1)}</p>"


def check(text, translation):
    assert tags_of(translation) == tags_of(text)
    assert translation.count("&copy;") == text.count("&copy;")
    ElementTree.fromstring(translation.replace("<br>", "<br/>").replace("&copy;", "c"))


def test_sentences_keep_their_tags(capitals):
    random_ = random.Random(7)
    texts = [html(random_) for _ in range(80)]
    for text, found in zip(texts, capitals.translate(texts, n_best=2, format="html"), strict=True):
        assert found.alternatives[0].text == found.text
        for each in found.alternatives:
            check(text, each.text)


def marked(count):
    """Segments with one letter in a tag."""
    random_ = random.Random(1)
    for text in letters(count, 2):
        words = text.split()
        place = random_.randrange(len(words))
        words[place] = f"<b>{words[place]}</b>"
        yield read(" ".join(words))


def rightly_placed(model, segments):
    """How often a tag encloses the same letters, where the model wrote those of its source."""
    found = model.translate_marked(segments)
    pairs = [(a, b) for a, b in zip(segments, found, strict=True) if plain(a).upper() == plain(b)]
    assert len(pairs) > len(segments) / 2  # it has learned something
    return sum(shown(a)[:-4].upper() in shown(b).upper() for a, b in pairs) / len(pairs)


def test_tags_stay_with_their_words(capitals):
    assert rightly_placed(capitals, [*marked(60)]) > 0.9


def test_a_planted_break_of_placement_is_found(capitals, monkeypatch):
    """A control: the tags of a model that seems to look one word too early are elsewhere."""
    alignments = type(capitals).alignments

    def early(*given):
        return [[max(0, place - 1) for place in each] for each in alignments(*given)]

    monkeypatch.setattr(type(capitals), "alignments", early)
    assert rightly_placed(capitals, [*marked(60)]) < 0.5


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_a_model_that_fails_keeps_the_tags(attention):
    """One that knows nothing, with attention and without."""
    from tests.families import tiny_rnn

    failing = make()
    if attention == "none":
        size = failing.target_tokenizer.size
        failing.model = tiny_rnn(attention="none", source_size=size, target_size=size)
    random_ = random.Random(9)
    for _ in range(10):
        text = html(random_)
        check(text, failing.translate([text], format="html")[0].text)


def test_the_same_alone_and_in_company(capitals):
    texts = [html(random.Random(seed)) for seed in range(6)]
    together = [each.text for each in capitals.translate(texts, format="html")]
    assert together == [capitals.translate([text], format="html")[0].text for text in texts]


def test_an_inline_tag_does_not_cut_a_sentence(capitals):
    [found] = capitals.translate(["<p>a <b>c</b> d</p>"], format="html")
    [whole] = capitals.translate(["a c d"])
    assert bare(found.text) == f"<p>{whole.text}</p>"
    assert found.score == pytest.approx(whole.score)
    assert found.tokens == whole.tokens


def bare(text):
    return text.replace("<b>", "").replace("</b>", "")


def test_nothing_to_translate_comes_back(capitals):
    for text in ("", "<p> </p>", "<pre>a b</pre>", "12 &lt; 13"):
        assert capitals.translate([text], format="html")[0].text == text
    assert capitals.translate_marked([[Mark(1)], []]) == [[Mark(1)], []]


def test_marked_texts_of_several_lines_and_sentences(capitals):
    segment = read("<b>a c.</b> d <i>f\n- g</i> h")
    [found] = capitals.translate_marked([segment], sentences=True)
    assert_nested(found)
    assert plain(found).count("\n- ") == 1


def test_what_is_refused(capitals):
    with refusal("format is 'pdf', expected one of: text, html, xml"):
        capitals.translate(["a"], format="pdf")
    with refusal("prefixes are for plain text"):
        capitals.translate(["a"], prefixes=["A"], format="html")
    with refusal("input 2: is not well-formed XML"):
        capitals.translate(["a", "<a>"], format="xml")
    with refusal("expected a list of texts"):
        capitals.translate("a", format="html")
