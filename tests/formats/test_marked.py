"""Tags go with the words that they enclosed, each once and well nested, whatever the links say."""

import random

import pytest

from tests.refusals import refusal
from transduct.formats import marked
from transduct.formats.marked import Mark, placed, plain


def read(text):
    """A segment from text such as "a <b>c</b> <i/>"."""
    parts = []
    for part in marked.re.split(r"(<[^>]*>)", text):
        if part.startswith("<"):
            kind = "close" if part[1] == "/" else "alone" if part[-2] == "/" else "open"
            parts.append(Mark(part, kind))
        elif part:
            parts.append(part)
    return parts


def shown(segment):
    return "".join(part if isinstance(part, str) else part.id for part in segment)


def links(translation, source, pairs):
    """Links between words that occur once in each."""
    return [
        ((a := translation.index(x), a + len(x)), (b := source.index(y), b + len(y)))
        for x, y in (pair.split("=") for pair in pairs.split())
    ]


@pytest.mark.parametrize(
    ("source", "pairs", "expected"),
    [
        (
            "Das <b>rote Haus</b> ist <i><u>sehr</u> gross</i>. <img/>",
            "Very=sehr big=gross is=ist the=Das red=rote house=Haus .=.",
            "<i><u>Very</u> big</i> is the <b>red house</b>.<img/>",
        ),
        # one wrong link does not tear a run open
        ("<b>a b</b> c d e", "A=a x=e B=b C=c D=d", "<b>A x B</b> C D"),
        # neighbours do not take each other's words
        ("<b>a</b> <i>b</i> c", "A=a B=b C=c", "<b>A</b> <i>B</i> C"),
        ("<b>a</b> <i>b</i> c", "B=b A=a C=c", "<i>B</i> <b>A</b> C"),
        # what encloses all goes on enclosing all, without any link
        ("<a><b>x y</b></a>", "", "<a><b>P Q R</b></a>"),
        # a word that both have once is found without a link
        ("Ich mag <b>Berlin</b> sehr", "", "Really <b>Berlin</b> pleases me"),
        ("x H<sub>2</sub>O y", "", "y H<sub>2</sub>O x"),
        # an empty tag stands between the words that it stood between
        ("a b <br/> c d", "C=c D=d", "A B <br/> C D"),
        ("a<sup/> b c", "A=a B=b C=c", "A<sup/> B C"),
        ("<img/> a b <br/>", "A=a B=b", "<img/>A B<br/>"),
        ("a <b></b>b", "A=a B=b", "A <b></b>B"),
        # a blank stays between a tag and its text
        ("<img/> a <b>b</b>", "A=a B=b", "<img/> A <b>B</b>"),
        ("我是<b>学生</b>。", "A=我 B=学生 .=。", "A <b>B</b>."),
    ],
)
def test_tags_go_with_their_words(source, pairs, expected):
    segment = read(source)
    bare = "".join(part for part in read(expected) if isinstance(part, str))
    translation = bare.replace("  ", " ")
    assert (
        shown(placed(segment, translation, links(translation, plain(segment), pairs))) == expected
    )


def test_a_tag_that_comes_first_keeps_the_blank_behind_it():
    found = placed(read("a <img/> b c"), "C B", links("C B", "a b c", "C=c B=b"))
    assert shown(found) == "<img/> C B"


def nested(random_, depth=0):
    """A segment with tags at random."""
    parts = []
    for _ in range(random_.randrange(4)):
        kind = random_.random()
        if kind < 0.5:
            parts.append(random_.choice(["one ", "two", " three", "4", " ", "five six."]))
        elif kind < 0.7 or depth > 3:
            parts.append(Mark(f"<{random_.randrange(100)}/>"))
        else:
            name = random_.randrange(100)
            inside = nested(random_, depth + 1)
            parts += [Mark(f"<{name}>", "open"), *inside, Mark(f"</{name}>", "close")]
    return parts


def assert_nested(segment):
    opened = []
    for part in segment:
        if isinstance(part, Mark) and part.kind == "open":
            opened.append(part.id)
        elif isinstance(part, Mark) and part.kind == "close":
            assert part.id.replace("/", "") == opened.pop()
    assert not opened


def test_whatever_the_links_all_tags_are_there_and_well_nested():
    random_ = random.Random(5)
    for _ in range(500):
        segment = nested(random_)
        text = plain(segment)
        words = ["uno", "dos", "4", "one", ".", "我是"]
        translation = " ".join(random_.choices(words, k=random_.randrange(7)))

        def span(length):
            start = random_.randrange(length + 1)
            return start, random_.randint(start, length)

        joined = [(span(len(translation)), span(len(text))) for _ in range(random_.randrange(8))]
        found = placed(segment, translation, joined)
        marks = [part for part in found if isinstance(part, Mark)]
        key = [(part.id, part.kind) for part in segment if isinstance(part, Mark)]
        assert sorted((part.id, part.kind) for part in marks) == sorted(key)
        assert_nested(found)
        assert plain(found).replace(" ", "") == translation.replace(" ", "")


def test_a_planted_break_is_found(monkeypatch):
    """A control: if runs could overlap, the test above would fail."""
    monkeypatch.setattr(marked, "TAKEN", 0)
    monkeypatch.setattr(marked.np, "flatnonzero", lambda values: marked.np.arange(len(values)))
    with pytest.raises((AssertionError, IndexError)):
        test_whatever_the_links_all_tags_are_there_and_well_nested()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("a</b>", "closes that is not open"),
        ("<b>a", "left open"),
        ("<b>" * 200 + "</b>" * 200, "more than 200 tags are open"),
    ],
)
def test_what_is_not_well_nested_is_refused(source, problem):
    with refusal(problem):
        plain(read(source))
