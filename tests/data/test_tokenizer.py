"""Tokenizers give back the text they were given, keep special tokens out of its reach, and are the
same each run."""

import json
import os
import pickle
import random
import re
import subprocess
import sys
import unicodedata
from itertools import pairwise

import pytest
import tokenizers as tokenizers_library
from tokenizers import normalizers

from tests.refusals import refusal
from transduct.data import tokenizer as module
from transduct.data.samples import generate
from transduct.data.tokenizer import (
    Side,
    Tokenizer,
    TokenizerConfig,
    tokenizers_in,
    train_tokenizer,
    train_tokenizers,
)
from transduct.data.tokenizer_file import OWN, TIDY, cleared
from transduct.data.vocabulary import COVERING
from transduct.records import record

KINDS = ["bpe", "unigram", "word", "character", "verbatim", "byte"]
LINES = [
    "Ein Haus am See, ein Häuschen am Meer.",
    "the houses by the sea are the best houses",
    "나는 학교에 간다 그리고 너는 집에 간다",
    *[text for pair in generate("number_names", 200) for text in pair],
]
SPECIAL = ["</s>", "a</s>b", "<s> <unk> </s>", "<unk><s>"]


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: Tokenizer.train(LINES + SPECIAL * 5, kind, 400) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_back_what_was_encoded(tokenizers, kind):
    tokenizer = tokenizers[kind]
    known = [line for line in LINES if kind != "word" or 0 not in tokenizer.encode([line])[0]]
    assert len(known) > 20
    assert tokenizer.decode(tokenizer.encode(known)) == known


def test_bytes_give_back_any_line():
    tokenizer = Tokenizer.train([], "byte", 0)
    lines = [
        "",
        "  two  blanks ",
        "\ttab\x00\u2028\x85\r",
        "가▁😀</s>",
        "".join(map(chr, range(32, 0x250))),
    ]
    lines = [unicodedata.normalize("NFC", cleared(line)) for line in lines]
    assert tokenizer.decode(tokenizer.encode(lines)) == lines
    assert tokenizer.size == 259
    for line in lines:
        assert tokenizer.encode([line]) == [[byte + 3 for byte in line.encode()]]


def test_a_verbatim_token_is_a_character_and_no_character_is_lost():
    lines = ["", "  two  blanks ", "\ttab\u2028\x85\r", "a▁b </s>", "학교에"]
    tokenizer = Tokenizer.train(lines, "verbatim", 100)
    encoded = tokenizer.encode(lines)
    assert tokenizer.decode(encoded) == lines
    assert list(map(len, encoded)) == list(map(len, lines))
    assert tokenizer.size == 3 + len(set("".join(lines)))
    assert tokenizer.pieces(encoded[1]) == list(lines[1])
    assert tokenizer.encode(["ßß"]) == [[Tokenizer.UNKNOWN] * 2]
    assert Tokenizer.train(["aaa bb c"], "verbatim", 6).pieces(range(6))[3:] == ["a", " ", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_forms_of_unicode_are_one(tokenizers, kind):
    composed = "Häuschen 학교에"
    for form in ("NFC", "NFD"):
        assert tokenizers[kind].encode([unicodedata.normalize(form, composed)]) == tokenizers[
            kind
        ].encode([composed])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_separators_that_are_no_white_space_to_the_library_are_known(kind):
    line = "a\x1cb \x1d c\x1e\x1f d"
    tokenizer = Tokenizer.train([*LINES, *[line] * 5], kind, 400)
    assert tokenizer.decode(tokenizer.encode([line])) == [line]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_white_space_is_one_blank_and_none_at_the_ends(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert tokenizer.encode(["\ttwo\u2028 \xa0three "]) == tokenizer.encode(["two three"])
    assert tokenizer.encode(["", "  "]) == [[], []]
    assert tokenizer.pieces(tokenizer.encode(["two three"])[0])[0].startswith("▁")


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_special_tokens_are_not_learnt_inside_words(kind):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(900)]
    lines = [f"{one} <s>{other}</s> <unk>{one}" for one, other in zip(words, reversed(words))]
    tokenizer = Tokenizer.train(lines, kind, 3000)
    encoded = tokenizer.encode(lines)
    assert not {Tokenizer.UNKNOWN, Tokenizer.BEGIN, Tokenizer.END} & {
        token for ids in encoded for token in ids
    }
    assert tokenizer.decode(encoded) == lines


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_becomes_a_special_token(tokenizers, kind, tmp_path):
    tokenizers[kind].save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    for tokenizer in (tokenizers[kind], loaded, pickle.loads(pickle.dumps(loaded))):
        encoded = tokenizer.encode(SPECIAL)
        assert not {Tokenizer.UNKNOWN, Tokenizer.BEGIN, Tokenizer.END} & {
            token for ids in encoded for token in ids
        }
        assert tokenizer.decode(encoded) == SPECIAL


def of_the_library(tokenizer, texts):
    """What the library itself makes of the texts, each read whole."""
    library = tokenizers_library.Tokenizer.from_str(tokenizer.text)
    library.encode_special_tokens = True
    return [coded.ids for coded in library.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("every", [32, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_the_librarys_for_characters_and_words_anywhere(tokenizers, kind, every):
    # All of Latin, of the blanks and of the blocks with "▁", and a part of what else there is.
    numbers = {*range(0x250), *range(0x2000, 0x2070), *range(0x2580, 0x2590), 0x1680, 0x3000}
    numbers |= {*range(0, 0xD800, every), *range(0xE000, 0x11000, every)}
    characters = [chr(number) for number in sorted(numbers)]
    texts = [f"two{character}h {character}{character} three" for character in characters]
    texts += [
        *characters,
        *LINES,
        *SPECIAL,
        "a▁b",
        "a ▁b",
        "▁",
        "▁ a",
        "a▁ b",
        "<a<b <",
        "  ",
        " a ",
        "a\x1cb",
        "a \u0301b",
    ]
    random.Random(1).shuffle(texts)
    expected = of_the_library(tokenizers[kind], texts)
    for _ in range(2):  # of words that are new, and that are known
        assert tokenizers[kind].encode(texts) == expected


def test_known_words_are_no_more_than_are_worth_their_memory(tokenizers, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 3)
    tokenizer = pickle.loads(pickle.dumps(tokenizers["bpe"]))
    assert tokenizer.encode(["a b", "c b a"]) == of_the_library(tokenizer, ["a b", "c b a"])
    assert tokenizer._known.keys() == {"a", "b", "c"}
    assert tokenizer.encode(["a d"]) == of_the_library(tokenizer, ["a d"])
    assert tokenizer._known == {}


def test_lines_without_blanks_are_not_kept_at_hand(tokenizers):
    tokenizer = pickle.loads(pickle.dumps(tokenizers["bpe"]))
    texts = ["a" * module.SHORT, "a" * (module.SHORT + 1), "b"]
    assert tokenizer.encode(texts) == tokenizer.encode(texts) == of_the_library(tokenizer, texts)
    assert tokenizer._known.keys() == {texts[0], "b"}


def test_a_model_directory_holds_one_tokenizer_or_two_and_others_beside(tmp_path):
    (tmp_path / "tokenizer_backup.json").touch()
    assert [path.name for path in tokenizers_in(tmp_path)] == ["tokenizer.json"]
    (tmp_path / "tokenizer.target.json").touch()
    assert [path.name for path in tokenizers_in(tmp_path)] == [
        "tokenizer.source.json",
        "tokenizer.target.json",
    ]


def test_a_tokenizer_of_other_making_reads_texts_as_it_was_made_to(tokenizers):
    library = tokenizers_library.Tokenizer.from_str(tokenizers["bpe"].text)
    library.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(" ", "")]
    )
    tokenizer = Tokenizer(library.to_str())
    assert (
        tokenizer.encode(["TWO three"])
        == tokenizer.encode(["twothree"])
        == of_the_library(tokenizer, ["two three"])
    )


ODD = [
    " ",
    "▁",
    "\x10",
    "\x11",
    "\x12",
    "<",
    "0x41>",
    "</s>",
    "e\u0301",
    "\x1c",
    "\r",
    "\x85",
    "\ufdd0",
]


def any_texts(count, seed):
    """Texts of any characters, many of them ones that a tokenizer might stumble over."""
    draw = random.Random(seed)
    planes = [range(1, 0xD800), range(0xE000, 0x110000), range(32, 127)]
    for _ in range(count):
        parts = [chr(draw.choice(draw.choice(planes))) for _ in range(draw.randrange(9))]
        parts += draw.choices([*ODD, "the ", "학교에 "], k=draw.randrange(9))
        draw.shuffle(parts)
        yield "".join(parts)


def as_read(text, kind):
    """A text as it must come back."""
    text = unicodedata.normalize("NFC", cleared(text))
    return text if kind in ("verbatim", "byte") else " ".join(re.split(r"[^\S\x1c-\x1f]+", text))


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_comes_back(tokenizers, kind):
    texts = [
        *any_texts(500, 1),
        "",
        "\n",
        "a\nb",
        "5 € & {0} von {1}",
        "▁",
        " ▁ ▁▁a▁ ",
        "<0x41> <0x0A>",
    ]
    encoded = tokenizers[kind].encode(texts)
    assert tokenizers[kind].UNKNOWN not in {token for ids in encoded for token in ids}
    back = tokenizers[kind].decode(encoded)
    assert back == [
        as_read(text, kind).strip(" ") if kind not in ("verbatim", "byte") else as_read(text, kind)
        for text in texts
    ]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim"])
def test_bytes_are_part_of_a_vocabulary_that_has_room_for_them(kind, caplog):
    for size in (COVERING, COVERING + 1):
        covering = Tokenizer.train(LINES, kind, size)
        assert COVERING - 10 < covering.size <= size
        assert covering.pieces([3, 258]) == ["<0x00>", "<0xFF>"]
        assert covering.bytes == {byte + 3: byte for byte in range(256)}
        assert covering.unknown("ß€") == []
    assert not caplog.records
    small = Tokenizer.train(LINES, kind, COVERING - 1)
    assert small.kind == covering.kind == kind or kind == "bpe"
    assert small.bytes == {}
    assert Tokenizer.UNKNOWN in small.encode(["ß"])[0]
    assert small.decode(small.encode(["ein ß"])) == ["ein" if kind == "word" else "ein "]
    assert (
        "tokenizer.size 299 leaves no room for the 256 bytes, so characters that the "
        "vocabulary lacks are unknown; 300 or more can spell all" in caplog.text
    )


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim"])
def test_what_is_unknown_is_told(kind):
    small = Tokenizer.train(LINES, kind, 250)
    lost = ["aß€", "€"] if kind == "word" else ["ß", "€", "€", "▁"]
    assert small.unknown("das aß€ € das▁" if kind != "word" else "the aß€ € the") == lost
    assert small.unknown("the houses") == []
    assert Tokenizer.train([], "byte", 0).unknown("ß€") == []


def test_a_tokenizer_of_version_01_reads_as_it_did():
    model = tokenizers_library.models.BPE(
        {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "▁a": 5}, [("▁", "a")], unk_token="<unk>"
    )
    library = tokenizers_library.Tokenizer(model)
    library.normalizer, library.pre_tokenizer = TIDY, tokenizers_library.pre_tokenizers.Metaspace()
    library.decoder = tokenizers_library.decoders.Metaspace()
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    old = Tokenizer(library.to_str())
    assert old.kind == "bpe"
    assert old.encode([" a▁a aβ", "a"]) == [[5, 5, 5, 0], [5]]
    assert old.decode([[5, 5, 5, 0]]) == ["a a a"]
    assert (old.bytes, old.unknown("a▁β")) == ({}, ["β"])


def older(tokenizer):
    """The same tokenizer as a version wrote it that read characters that nobody sees."""
    content = json.loads(tokenizer.text)
    rules = [rule for rule in content["normalizer"]["normalizers"] if rule not in OWN]
    content["normalizer"] = (
        content["normalizer"] | {"normalizers": rules} if rules[1:] else rules[0]
    )
    return Tokenizer(json.dumps(content))


@pytest.mark.parametrize("kind", KINDS)
def test_characters_that_nobody_sees_are_not_read(kind, tmp_path):
    seen = [
        "the house of Tom",
        "flag 🏴\U000e0067\U000e0062\U000e007f a\u200cb c\u200dd ❤\ufe0f",
        "office",
    ]
    unseen = [
        "\ufeffthe ho\xaduse o\u200bf\u200e Tom\u2060",
        f"\u202a{seen[1]}\u202c\U000e0041",
        "o\ufb03ce",
    ]
    tokenizer = Tokenizer.train([*seen, *unseen] * 2, kind, 400)
    assert tokenizer.encode(unseen) == tokenizer.encode(seen)
    assert tokenizer.decode(tokenizer.encode(unseen)) == seen
    assert tokenizer.encode(["\u200b", "\xad\u2060"]) == [[], []]
    assert tokenizer.unknown("\xad") == []
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode(unseen) == tokenizer.in_use().encode(unseen) == tokenizer.encode(seen)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "verbatim", "byte"])
def test_an_older_tokenizer_reads_them_in_training_and_in_use_those_that_it_knows(kind):
    """In use it leaves out what it never learnt; bytes do not show what was learnt."""
    old = older(Tokenizer.train(LINES, kind, 400))
    before = old.encode(["a\xadb ﬁ", "the houses"])
    assert before != old.encode(["ab fi", "the houses"])
    found = old.in_use().encode(["a\xadb ﬁ", "the houses"])
    assert found == (before if kind == "byte" else old.encode(["ab fi", "the houses"]))
    if kind != "byte":
        knows = json.loads(old.text)
        listed = knows["model"]["vocab"]
        if kind == "unigram":
            listed.append(["\xad", -1.0])
        else:
            listed["\xad"] = len(listed)
        knowing = Tokenizer(json.dumps(knows))
        assert knowing.kind == old.kind == kind
        before = knowing.encode(["a\xadb a\u200bb"])
        assert (
            knowing.in_use().encode(["a\xadb a\u200bb", "a\xadb ab"])
            == [knowing.encode(["a\xadb ab"])[0]] * 2
        )
        assert before != knowing.encode(["a\xadb a\u200bb"])


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_leaves_out_special_tokens_and_is_one_line(tokenizers, kind):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(["two three"])[0]
    assert tokenizer.decode([[1, *ids, 0, 2], []]) == ["two three", ""]
    everything = tokenizer.decode([range(tokenizer.size + 5)])[0]
    assert kind == "byte" or "\n" not in everything
    assert len(tokenizer.pieces(range(tokenizer.size + 5))) == tokenizer.size + 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(tokenizers, kind, tmp_path):
    tokenizer = tokenizers[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    for other in (
        Tokenizer.load(tmp_path / "tokenizer.json"),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert (other.kind, other.size, other.digest) == (kind, tokenizer.size, tokenizer.digest)
        assert other.encode(LINES) == tokenizer.encode(LINES)
    assert len({each.digest for each in tokenizers.values()}) == len(KINDS)


def resegmented(tokenizer, ids, dropout, seed):
    return tokenizer.resegment(ids, dropout, random.Random(seed))


def test_resegmenting_without_dropout_gives_back_every_id(tokenizers):
    tokenizer = tokenizers["bpe"]
    lines = [*LINES, "unknown ß inside ßß and çalone ç", *SPECIAL, ""]
    for ids in tokenizer.encode(lines):
        assert resegmented(tokenizer, ids, 0.0, 1) == ids
    assert resegmented(tokenizer, [1, 2, 0], 0.0, 1) == [1, 2, 0]


def test_resegmenting_changes_the_pieces_but_not_the_text(tokenizers):
    tokenizer = tokenizers["bpe"]
    encoded = tokenizer.encode(LINES)
    drawn = [resegmented(tokenizer, ids, 0.3, 1) for ids in encoded]
    assert tokenizer.decode(drawn) == LINES
    assert sum(map(len, drawn)) > sum(map(len, encoded))
    assert drawn == [resegmented(tokenizer, ids, 0.3, 1) for ids in encoded]
    assert drawn != [resegmented(tokenizer, ids, 0.3, 2) for ids in encoded]


def test_full_dropout_gives_characters(tokenizers):
    tokenizer = tokenizers["bpe"]
    ids = tokenizer.encode(["the houses"])[0]
    assert tokenizer.pieces(resegmented(tokenizer, ids, 1.0, 1)) == list("▁the▁houses")


def plain_dropout(tokenizer, word, dropout, draw):
    """Algorithm 1 of Provilkov et al. (2020), to the letter."""
    merges = json.loads(tokenizer.text)["model"]["merges"]
    rank = {tuple(pair): number for number, pair in enumerate(merges)}
    pieces = list(word)
    while True:
        possible = [(rank[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in rank]
        possible = [merge for merge in possible if draw.random() >= dropout]
        if not possible:
            return pieces
        _, i = min(possible)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def merged_one_by_one(tokenizer, word, dropout, draw):
    """The same merges, looked for anew in the whole word after each."""
    merges = tokenizer._merges
    while True:
        for _, token, place in sorted(
            (*merges[pair], n) for n, pair in enumerate(pairwise(word)) if pair in merges
        ):
            if draw.random() >= dropout:
                word[place : place + 2] = [token]
                break
        else:
            return word


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
def test_a_word_as_long_as_a_sentence_is_merged_as_if_one_by_one(tokenizers, dropout):
    tokenizer, draw = tokenizers["bpe"], random.Random(3)
    letters = tokenizer._characters.values()
    known = sorted({letter for each in letters for letter in each})
    for length in (0, 1, 2, 7, 120):
        word = [draw.choice(known) for _ in range(length)]
        found = tokenizer._merged([*word], dropout, random.Random(length))
        assert found == merged_one_by_one(tokenizer, [*word], dropout, random.Random(length))


def test_dropout_has_the_distribution_of_the_paper(tokenizers):
    tokenizer, count = tokenizers["bpe"], 4000
    draw = random.Random(1)
    ids = tokenizer.encode(["three"])[0]
    ours, theirs = {}, {}
    for _ in range(count):
        for counts, pieces in (
            (ours, tokenizer.pieces(tokenizer.resegment(ids, 0.4, draw))),
            (theirs, plain_dropout(tokenizer, "▁three", 0.4, draw)),
        ):
            counts[tuple(pieces)] = counts.get(tuple(pieces), 0) + 1
    assert len(theirs) > 5
    for pieces in ours | theirs:
        a, b = ours.get(pieces, 0), theirs.get(pieces, 0)
        assert abs(a - b) < 5 * (a + b + 1) ** 0.5  # five standard deviations


@pytest.mark.parametrize("kind", ["unigram", "word", "character", "verbatim", "byte"])
def test_only_merges_can_be_dropped(tokenizers, kind):
    with refusal(f"kind '{kind}' has no merges to drop; set tokenizer.dropout to 0"):
        tokenizers[kind].resegment([3], 0.1, random.Random(1))


def test_files_that_are_no_tokenizer_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    with refusal(r"tokenizer.json: cannot be read \(No such file.*\); expected a tokenizer"):
        Tokenizer.load(path)
    for content in (b"{", b"[]", b'{"model": 1}', b"\xff"):
        path.write_bytes(content)
        with refusal(r"tokenizer.json: not a tokenizer \(.*\); expected a file that train"):
            Tokenizer.load(path)
    held = json.loads(Tokenizer.train(["ab ab ab"], "bpe", 9).text)
    damaged = [
        {"unk_token": "none"},
        {"vocab": {key: at for key, at in held["model"]["vocab"].items() if key != "ab"}},
    ]
    for changes in damaged:  # at the second the library panics
        path.write_text(json.dumps({**held, "model": held["model"] | changes}))
        with refusal(r"tokenizer.json: not a tokenizer \(.*\); expected a file that train"):
            Tokenizer.load(path)
    Tokenizer.train(["a b"], "word", 9).save(path)
    path.write_text(path.read_text().replace("</s>", "<end>"))
    with refusal(r"<unk>, <s>, </s> have the ids \[0, 1, None\], expected \[0, 1, 2\]"):
        Tokenizer.load(path)


def test_shared_and_separate_tokenizers():
    pairs = list(generate("number_names", 200))
    both, same = train_tokenizers(pairs, TokenizerConfig(size=200))
    assert both is same
    own = TokenizerConfig(kind="word", size=200, shared=False, target=Side("character", 50))
    source, target = train_tokenizers(iter(pairs), own)
    assert (source.kind, target.kind) == ("word", "character")
    assert 0 not in source.encode([pairs[0][0]])[0]
    assert 0 in source.encode([pairs[0][1]])[0]


def test_a_tokenizer_is_trained_on_a_sample_of_its_texts():
    texts = [f"w{number}" for number in range(50)]
    few = train_tokenizer(iter(texts), TokenizerConfig("word", 100, sample=10))
    assert sum(0 not in ids for ids in few.encode(texts)) == 10
    assert (
        train_tokenizer(texts, TokenizerConfig("word", 100)).text
        == Tokenizer.train(texts, "word", 100).text
    )


@pytest.mark.parametrize("shared", [True, False])
def test_dropout_without_merges_is_refused(shared):
    pairs = [("abcdefghi", "abcdefghi")] * 5
    message = (
        "size 12 leaves no room for merges beside 9 characters; raise it, or set "
        "tokenizer.dropout to 0"
    )
    with refusal(message):
        train_tokenizers(pairs, TokenizerConfig("bpe", 12, shared, dropout=0.1))
    assert {each.kind for each in train_tokenizers(pairs, TokenizerConfig("bpe", 12, shared))} == {
        "character"
    }
    assert {
        each.kind
        for each in train_tokenizers(pairs, TokenizerConfig("bpe", 20, shared, dropout=0.1))
    } == {"bpe"}
    message = (
        "found no two characters twice beside each other, so nothing merges; give more "
        "text, or set tokenizer"
    )
    with refusal(message):
        train_tokenizers([("abc", "def")], TokenizerConfig("bpe", 100, shared, dropout=0.1))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"source": Side()}, "source and target set one side each; set shared to false with them"),
        (
            {"dropout": 0.1, "kind": "word"},
            "dropout is the dropout of BPE merges; set kind to bpe, or dropout to 0",
        ),
        (
            {"dropout": 0.1, "shared": False, "target": Side("byte")},
            "dropout is the dropout of BPE merges",
        ),
    ],
)
def test_impossible_tokenizer_sections_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TokenizerConfig(**values)


def test_a_recipe_section_becomes_this_record():
    section = {"shared": False, "dropout": 0.1, "source": {"size": 99}}
    assert record(TokenizerConfig, section, "tokenizer").sides() == (
        Side("bpe", 99),
        Side("bpe", 8000),
    )


@pytest.mark.parametrize("setting", [None, "false"])
def test_encoding_in_a_forked_process_works_and_says_nothing(setting):
    code = (
        "import os, sys; from transduct.data.tokenizer import Tokenizer; t = "
        "Tokenizer.train(['a b'] * 99, 'word', 300);"
        "t.encode(['a b'] * 99); child = os.fork(); os.write(1, b'%d\\n' % len(t.encode(['a "
        "b'] * 9)));"
        "child and sys.exit(os.waitpid(child, 0)[1] or os.environ.get('TOKENIZERS_PARALLELISM'))"
    )
    environment = {
        key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"
    }
    if setting:
        environment["TOKENIZERS_PARALLELISM"] = setting
    run = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (run.stdout, run.stderr.strip()) == ("9\n9\n", setting or "")


def test_tokenizers_of_another_model_are_refused(tokenizers, tmp_path):
    module.check_sizes(tmp_path, (5, 6), (5, 6))
    with refusal("the tokenizers hold 5 tokens, the model 6; they do not belong together"):
        module.check_sizes(tmp_path, (5,), (6,))
    tokenizers["word"].save(tmp_path / "tokenizer.json")
    size = tokenizers["word"].size
    assert [each.size for each in module.tokenizers_of(tmp_path, (size, size))] == [size]
    for odd in ((size, 7), (None, None)):
        with refusal(f"hold {size} and {size} tokens, the model {odd[0]} and {odd[1]}; they"):
            module.tokenizers_of(tmp_path, odd)


def test_a_file_that_asks_for_padding_or_truncation_gets_neither(tokenizers):
    library = tokenizers_library.Tokenizer.from_str(tokenizers["bpe"].text)
    library.enable_padding(length=50)
    library.enable_truncation(1)
    texts = ["a <b> c", "<", ""]
    assert Tokenizer(library.to_str()).encode(texts) == tokenizers["bpe"].encode(texts)
