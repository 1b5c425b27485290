"""Mark-up is cut into segments and put together again; whatever becomes of the segments, it parses
with the same tags."""

import random
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.refusals import refusal
from transduct.formats.marked import Mark
from transduct.formats.markup import Markup, document


def shown(text, kind="html", **more):
    """The segments, with | between parts."""
    found = document(text, Markup(kind, **more)).segments
    return ["|".join(p if isinstance(p, str) else p.id for p in segment) for segment in found]


class Tags(HTMLParser):
    """The tags, comments and scripts of HTML, as a browser would read them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.text, self.opened = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(attrs)))
        self.opened.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, tuple(attrs)))

    def handle_endtag(self, tag):
        self.found.append(f"/{tag}")
        assert tag in self.opened

    def handle_comment(self, data):
        self.found.append(("comment", data))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>A <b>bold</b> word.</p><p>Two</p>", ["A |<b>|bold|</b>| word.", "Two"]),
        ("one<br>two<hr/>three", ["one", "two", "three"]),
        ("A <!-- <b> --> comment", ["A |<!-- <b> -->| comment"]),
        ("<p>Press <code>a <b>c</b></code> now", ["Press |<code>a <b>c</b></code>| now"]),
        ("<pre>a\n b</pre>c", ["c"]),
        ("<script>if (a<b) '</p>'</script>c<style>p {}</style>", ["c"]),
        ("<script><!-- a</script>b", ["b"]),
        ("<script>never ends", []),
        ("a <u translate=no>N <u>x</u> y</u> b", ["a |<u translate=no>N <u>x</u> y</u>| b"]),
        ("a <i data-translate='no'>b</i>", ["a |<i data-translate='no'>|b|</i>"]),
        ("<div translate='no'><p>a</p></div>b", ["b"]),
        ('<a title="x > y">b</a>', ['<a title="x > y">|b|</a>']),
        ("caf&eacute; &amp; &lt;b&gt;", ["café & <b>"]),
        ("a &copy; 2020 &rarr; b", ["a |&copy;| 2020 |&rarr;| b"]),
        ("&unknown; a", ["&unknown;| a"]),
        ("a\n  b\t c", ["a b c"]),
        ("<b>never closed <p>text</b> end", ["never closed", "text", "end"]),
        ("<b>a <i>b</b> c</i> d", ["a", "b", "c", "d"]),
        ("<td> 12 </td><td>&nbsp;</td>", []),
        ("<ruby>a<rp>(</rp><rt>b</rt><rp>)</rp></ruby> c",
         ["<ruby>|a|<rp>(</rp>|<rt>b</rt>|<rp>)</rp>|</ruby>| c"]),
        ("a < b", ["a < b"]),
        ("R&D &copy 20 AT&T a &lt b", ["R&D |&copy| 20 AT&T a < b"]),  # as browsers read it
        ("a </> b </ p> c", ["a |</>| b |</ p>| c"]),
        ("", []),
    ],
)  # fmt: skip
def test_the_segments_of_html(text, expected):
    assert [part.replace("||", "|").strip("|") for part in shown(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<d><p>A <x/><g>b</g></p>\n<q><r>c</r><r>d</r></q></d>", ["A |<x/>|<g>|b|</g>", "c", "d"]),
        ("Press <i>here</i>", ["Press |<i>|here|</i>"]),
        ("<a><b>t <c><d>u</d></c></b></a>", ["t |<c>|<d>|u|</d>|</c>"]),
        ("<?xml version='1.0'?><!DOCTYPE a [<!ENTITY e 'f'>]><a>x &e; y</a>", ["x |&e;| y"]),
        ("<a>x <![CDATA[y & < z]]><b>w</b></a>", ["x |y & < z|<b>|w|</b>"]),
        ("<a><![CDATA[<p>x &amp; <i>y</i><p>z]]></a>", ["x & |<i>|y|</i>", "z"]),
        ("<a>x<![CDATA[]]></a>", ["x|<![CDATA[]]>"]),
    ],
)  # fmt: skip
def test_the_segments_of_xml(text, expected):
    assert [part.replace("||", "|").strip("|") for part in shown(text, "xml")] == expected


def test_a_caller_names_elements():
    """DeepL's three lists."""
    text = "<a>t <k>u</k> v <s>w</s></a>"
    assert shown(text, "xml", ignored=["k"]) == ["t |<k>u</k>| v |<s>|w|</s>"]
    assert shown(text, "xml", splitting=["k"]) == ["t", "u", "v |<s>|w|</s>"]
    assert shown("<p>a<div>b</div></p>", joining=["div"]) == ["a|<div>|b|</div>"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<a>x</b>", "found </b>, expected </a>"),
        ("x</b>", "found </b>, expected no end"),
        ("<a>x", "<a> has no end"),
        ("<a>x & y</a>", "a & is not escaped"),
        ("<a>x < y</a>", "a < is not escaped"),
    ],
)
def test_xml_that_is_not_well_formed_is_refused(text, problem):
    with refusal(problem):
        document(text, Markup("xml"))


INLINE = ["b", "i", "em", "a href='?a=1&amp;b=2'", 'span class="x>y"', "SUP", "x-y"]
ALONE = ["<img src=x>", "<!-- a <b> -->", "<code>a <i>b</i></code>", "<x id='3'/>", "&copy;"]
BLOCK = ["p", "div", "li", "h1", "td"]


def made(random_, depth=0):
    """HTML at random: blocks with sentences, tags inside each other, comments and entities."""
    out = ""
    for _ in range(random_.randrange(1, 5)):
        kind = random_.random()
        if depth < 2 and kind < 0.3:
            name = random_.choice(BLOCK)
            out += f"<{name}>\n{made(random_, depth + 1)}</{name}>"
        elif depth < 5 and kind < 0.6:
            name = random_.choice(INLINE)
            out += f"<{name}>{made(random_, max(2, depth + 1))}</{name.split()[0]}>"
        elif kind < 0.7:
            out += random_.choice(ALONE)
        else:
            words = ["one", "two &amp; three", "&#246;l", "5", "a&lt;b", "six.", "\n"]
            out += random_.choice(["", " "]) + " ".join(random_.choices(words, k=3))
    return out


def tags_of(text):
    return Counter(map(str, Tags(text).found))


def test_whatever_becomes_of_segments_the_tags_are_the_same():
    random_ = random.Random(3)
    for _ in range(300):
        text = made(random_)
        found = document(text, Markup("html"))
        wild = [
            [f"< & > \0 {part[:1]}\xa0" if isinstance(part, str) else part for part in segment]
            for segment in found.segments
        ]
        assert tags_of(found.written(wild)) == tags_of(text)
        kept = document(found.written(found.segments), Markup("html"))
        assert kept.segments == found.segments


def test_xml_parses_whatever_becomes_of_segments():
    text = "<a><p>x &amp; <b>y</b>\u00a0z</p><q k='1'>u<!-- v --></q></a>"
    found = document(text, Markup("xml"))
    wild = [[p if isinstance(p, Mark) else "<\x00&]]>\ufffe" for p in s] for s in found.segments]
    tree = ElementTree.fromstring(found.written(wild))
    assert [each.tag for each in tree.iter()] == ["a", "p", "b", "q"]
    assert tree[1].text == "<&]]>"


def test_cdata_is_written_so_that_it_parses():
    """As text if it is text, and as HTML within it if it holds tags."""
    text = "<a><b><![CDATA[x & y]]></b><c><![CDATA[<p>z</p>]]></c></a>"
    found = document(text, Markup("xml"))
    assert found.written(found.segments) == text
    tree = ElementTree.fromstring(found.written([["u < ]]>"], ["v < ]]>"]]))
    assert [each.text for each in tree] == ["u < ]]>", "<p>v &lt; ]]&gt;</p>"]


def test_what_is_not_translated_keeps_its_bytes():
    text = "<!DOCTYPE html>\r\n<td  class = x>&#49; &nbsp;</td>\t<script>a && b</script><P>a</P >\n"
    found = document(text, Markup("html"))
    assert found.written([["b"]]) == text.replace(">a</P", ">b</P")
