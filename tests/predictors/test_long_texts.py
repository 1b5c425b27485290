"""Long texts are cut where it hurts least, and the translations of their pieces are joined."""

import random
from dataclasses import replace

import pytest

from transduct.data.tokenizer import Tokenizer
from transduct.predictors.long_texts import (
    LINES,
    Translation,
    assemble,
    halved,
    laid_out,
    sentences,
    split,
    with_words,
)

LONGEST = 23


def trained(kind):
    """A tokenizer whose tokens are characters or bytes."""
    return Tokenizer.train(["a b c d e f g h i j k l m", "A B.", "。가나다라마바사아자"], kind, 300)


def test_a_translation_shows_what_matters():
    best = Translation("b", -1.0, [3], alternatives=[Translation("b", -1.0, [3])])
    assert repr(best) == "Translation(text='b', score=-1.0, tokens=[3])"


@pytest.mark.parametrize(
    "kind, text, parts",
    [
        # before a word, after a sentence, anywhere, not at all
        ("character", "a b c d e f g h i j k l m", "▁a▁b▁c▁d▁e▁f▁g▁h▁i▁j▁k|▁l▁m"),
        ("character", "a b. c d e f g h i j k l", "▁a▁b.|▁c▁d▁e▁f▁g▁h▁i▁j▁k▁l"),
        ("character", "abcdefgh" * 3, "▁abcdefghabcdefghabcdef|gh"),
        ("character", "a b c d e f g h i j k ", "▁a▁b▁c▁d▁e▁f▁g▁h▁i▁j▁k"),
        ("character", "", ""),
        ("character", "가나다라가나마。바 아자가.나다라마", "▁가나다라가나마。|바▁아자가.나다라마"),
        ("verbatim", "a b. c d e f g h i j k l m", "a b.| c d e f g h i j k l m"),
        ("byte", "a b. c d e f g h i j k l m", "aĠb.|ĠcĠdĠeĠfĠgĠhĠiĠjĠkĠlĠm"),
    ],
)
def test_where_a_text_is_cut(kind, text, parts):
    tokenizer = trained(kind)
    [ids] = tokenizer.encode([text])
    longest = 16 if text.startswith("가") else LONGEST
    found = ["".join(tokenizer.pieces(part)) for part in split(tokenizer, ids, longest)]
    assert "|".join(found) == parts


@pytest.mark.parametrize(
    "marked",
    [
        "Hello.| My name is John!| Is it?| Yes…| Then",
        'He said "no."| Then he left.| (She did not.)| End',
        "Mr. Smith met J. Lee of the U.S. Army.| Then",
        "Am 3. Mai kam er.| Im Jahr 1990.| Dann",
        "Rom im Jahr 500.| Es gab z. B. Brot.| Dann",
        "THEY SAW ROME.| Was it Ed.?| Then",
        "„Komm!“| Dann ging sie.| »Nein.«| Er ‚blieb.‘| So",
        "«Oui.»| «Non.»| ‹Si!›| „Ja!“, rief er.| Ok",
        "Yes.| A dog.| No.| It is not.| Oh.| Ja.| So.| Été.| Да.| Then",
        "No. 5 is Dr. Smith, Mrs. X or Gen. Lee of St. Paul.| So",
        "Prof. Dr. Ott aß bei Ott & Co. KG Nr. 3, Abs. 2. Nein",
        "Um 5 Mio. Euro mehr, so Maj. Ott in Vol. II.| Dann",
        "Ні.| Дякую.| Kız.| Adam geldi.",
        "Il dit : « Viens ! »| Puis il part.| «Non.»| Er kam.| »So!«",
        "Im Jahr 12. Am Tag 123.| Rom",
        "Wait... what? said he. version 2.5 of it.| Ok",
        "Wait...| What?| I see you.| Go on",
        "我喜欢。|你呢？|「好！」是",
        "「はい。」と言った。|では。",
        "〝はい。〟と言った。|では。",
        "《你好。》是一本书。|好。",
        "«네.»라고 말했다.| 끝.",
        "彼は「はい。行く。」 と言った。|『え？』",
        "「はい。」|「いいえ。」|「はい。|そう。",
        "来た。|（遅い。）|それから「ええ？」Tomは",
        "他说：“好。走吧！”然后走了。|再见。",
        '他来了。|"走吧。"他说。|‘好。’他说',
        '"가자. 어서." 그가 말했다.| 끝.',
        "“네.” 하고 말했다.| '왜?' 그는 물었다.",
        "I said “네.”| Then left.",
        "كيف حالك؟| أنا بخير.| هل أنت هنا؟",
        "یہ ایک ہے۔| یہ دو ہے۔",
        "यह एक वाक्य है।| यह दूसरा है।|तीसरा॥",
        "Բարեւ։| Ինչպես ես։",
        "ሰላም።| እንዴት ነህ።",
        "ကောင်းတယ်။| သွားမယ်။",
        "本当？！|はい｡|そう．|あ３．５です。|「行く。」",
        "本当ですか？、と彼は言った。",
        "네.| 알겠습니다.| 왜?| 가자!",
    ],
)
def test_a_text_is_its_sentences(marked):
    """Which are marked off."""
    assert sentences(marked.replace("|", "")) == [part.strip(" ") for part in marked.split("|")]


@pytest.mark.parametrize(
    "text, parts",
    [
        ("One.\u200b Two.\ufeff\u200e Three ", ["One.\u200b", "Two.\ufeff\u200e", "Three"]),
        ("\u200b", []),
        (" \ufeff\n\u2060\u200d\ufe0f", []),
        ("a title\n\n and a line\nanother. one", ["a title", "and a line", "another. one"]),
        (">>fra<< First. One then. Two", [">>fra<< First.", ">>fra<< One then.", ">>fra<< Two"]),
        (" >>fra<< Good day. Bye now", [">>fra<< Good day.", ">>fra<< Bye now"]),
        ("  one  ", ["one"]),
        (" . ", ["."]),
        ("", []),
        (" \n ", []),
        (">>fra<< Gut. Und du?", [">>fra<< Gut.", ">>fra<< Und du?"]),
        (">>fra<<Gut. Und du?", [">>fra<<Gut.", ">>fra<< Und du?"]),
        (">>fra<< Gut.\n>>ita<< Ja. Oh nein.", [">>fra<< Gut.", ">>ita<< Ja.", ">>ita<< Oh nein."]),
        ("- Ja. Gut.\n* 1) Nein", ["Ja.", "Gut.", "Nein"]),
    ],
)
def test_the_language_and_the_layout_of_a_text_are_no_sentences(text, parts):
    assert sentences(text) == parts


def whole(parts, gaps):
    return gaps[0] + "".join(part + gap for part, gap in zip(parts, gaps[1:], strict=True))


@pytest.mark.parametrize(
    "text, lines, each",
    [
        ("Ja, gut.\n\nNa.\n- So.", ["Ja, gut.", "Na.", "So."], ["Ja, gut.", "Na.", "So."]),
        (" ab. B \r\n\t c\r d\u2028e\n", ["ab. B", "c", "d", "e"], ["ab.", "B", "c", "d", "e"]),
        ("  one  ", ["one"], ["one"]),
        ("# A\n> - b\n---\n\n• c\na) d", ["A", "b", "c", "d"], ["A", "b", "c", "d"]),
        ("1. A\n2. B", ["A", "B"], ["A", "B"]),
        ("am\n12. Mai", ["am", "12. Mai"], ["am", "12. Mai"]),
        ("- one", ["- one"], ["one"]),
        ("- ", ["-"], ["-"]),
        ("あ。い？\n う。", ["あ。い？", "う。"], ["あ。", "い？", "う。"]),
        ("\n \n", [], []),
    ],
)
def test_what_stands_between_sentences_and_lines_is_kept(text, lines, each):
    for parts, by_sentence in ((lines, False), (each, True)):
        found, gaps = laid_out(text, by_sentence)
        assert found == parts
        assert whole(found, gaps) == text
        pieces = [[Translation(part, 0.0, [])] for part in found]
        assert assemble(pieces, 1, 0.0, gaps).text == (text if parts else "")


def test_any_text_is_its_parts_and_what_is_between():
    draw = random.Random(1)
    bits = [*" \n\r\t\u2028\x85.!?。？؟।…-*>#1.)'»」:aB한あ", "ab ", "12. ", "- ", "\r\n"]
    for _ in range(3000):
        text = "".join(draw.choices(bits, k=draw.randrange(14)))
        for by_sentence in (False, True):
            parts, gaps = laid_out(text, by_sentence)
            assert whole(parts, gaps) == text
            assert all(part == part.strip() and LINES.search(part) is None for part in parts)


def test_a_language_is_named_by_every_line():
    text = " >>fra<< Eins. Zwei\n\n- drei"
    assert laid_out(text, False) == ([">>fra<< Eins. Zwei", ">>fra<< drei"], [" ", "\n\n- ", ""])


def test_a_text_is_split_in_time_that_grows_with_its_length():
    text = "." * 50_000 + '"' * 50_000 + " " * 50_000 + "\n" * 50_000 + "a" * 50_000
    assert "".join(sentences(text)) == text.replace(" ", "").replace("\n", "")
    for run in (".", '"', "“", " ", "\n", "。", '."', ".“"):
        assert sentences(run * 50_000 + "a")[-1].endswith("a")


def test_every_piece_names_the_language_that_the_text_does():
    tokenizer = Tokenizer.train([">>fra<< a b c d e f g h"], "word", 40)
    [ids] = tokenizer.encode([">>fra<< a b c d e f g"])
    parts = [tokenizer.decode([part])[0] for part in split(tokenizer, ids, 4)]
    assert parts == [">>fra<< a b c", ">>fra<< d e f", ">>fra<< g"]
    assert split(tokenizer, ids[:4], 4) == [ids[:4]]
    assert split(tokenizer, ids[:1], 4) == [ids[:1]]
    # of one token none can name it
    assert split(tokenizer, ids[:3], 1) == [[token] for token in ids[:3]]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "verbatim", "byte"])
def test_a_language_that_is_named_in_several_tokens_is_named_by_every_piece(kind):
    letters = " ".join("abcdefgh" * 3)
    tokenizer = Tokenizer.train([f">>fra<< {letters}", ">>deu<< a"], kind, 40)
    [ids], [named] = tokenizer.encode([f">>fra<< {letters}"]), tokenizer.encode([">>fra<<"])
    assert 1 < len(named) <= 8
    parts = split(tokenizer, ids, 20)
    assert len(parts) > 1
    assert all(part[: len(named)] == named and len(part) <= 20 for part in parts)
    assert named + [token for part in parts for token in part[len(named) :]] == ids
    # it would fill more than half
    assert split(tokenizer, ids, 2 * len(named) - 1)[1][: len(named)] != named


def test_the_bytes_of_a_character_stay_together():
    tokenizer = trained("byte")
    [ids] = tokenizer.encode(["학교에갔다가집에왔다"])
    assert tokenizer.decode(split(tokenizer, ids, LONGEST)) == ["학교에갔다가집", "에왔다"]


@pytest.mark.parametrize(
    "text, runs",
    [
        ("a b", ["a b"]),
        ("a b c d e f g", ["a b c", "d e", "f g"]),
        ("a bcdefghi j k", ["a", "bcdefghi", "j k"]),
        ("bcdefghi", ["bcdefghi"]),
    ],
)
def test_words_are_halved_until_they_fit(text, runs):
    def encode(texts):  # two tokens for each word of one letter, as where words are numbered
        return [[token for word in each.split() for token in ["#", *word]] for each in texts]

    assert halved(encode, text.split(), 6) == [run.split() for run in runs]


def test_of_hypotheses_with_the_same_text_the_first_is_kept():
    first, same = Translation("a", -1.0, [5]), Translation("a", -2.0, [6])
    other = Translation("b", -3.0, [7])
    for n_best, kept in ((3, [first, other]), (1, [first])):
        found = assemble([[first, same, other]], n_best)
        assert found.alternatives == kept
        assert (found.text, found.score, found.tokens) == ("a", -1.0, [5])


def test_pieces_are_put_together_with_a_blank_where_their_script_has_one():
    def together(*texts):
        return assemble([[Translation(text, -1.0, [5])] for text in texts], 1).text

    assert together("A b.", "C", "d.") == "A b. C d."
    assert together("これは。", "あれは。", "B") == "これは。あれは。B"
    assert together("", "a", "", "b", "") == "a b"
    assert together("彼は", "行く", "と Tom", "は", "言う") == "彼は行くと Tomは言う"
    assert together("สวัสดี", "ครับ") == "สวัสดีครับ"
    assert together("나는", "간다") == "나는 간다"


def test_trees_that_differ_in_what_stands_for_words_alone_are_one():
    texts = ["(S a )S", "(S b )S", "(X a )X"]
    one, *others = (Translation(text, -i, [i]) for i, text in enumerate(texts))
    found = with_words(replace(one, alternatives=[one, *others]), ["c"])
    assert [(each.text, each.score) for each in found.alternatives] == [("(S c)", 0), ("(X c)", -2)]
    assert found.text == "(S c)"
