"""Scores equal sacrebleu's own; edit rates equal a second definition."""

import json
import random
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from functools import cache
from unicodedata import normalize

import pytest
from sacrebleu.metrics import BLEU

from tests.refusals import refusal
from transduct.data import tokenizer_file
from transduct.data.trees import Tree, linearised
from transduct.evaluation import text
from transduct.evaluation.text import corpus_scores, labelled_f1, read_tree

HYPOTHESES = [
    "the cat sat on the mat .",
    "a red house by the sea",
    "er isst , 나는 학교에 간다",
    "yes",
]
OTHER = ["a cat sits on mats .", "the red house by the sea", "nothing here", "yes"]
FIRST = ["the cat sat on a mat .", "the red house by the sea", "나는 학교에 간다", "yes"]
SECOND = ["a cat sat on the mat .", "a house at the seaside", "저는 학교에 갑니다", "yeah"]
REFERENCES = [list(pair) for pair in zip(FIRST, SECOND)]


def sacrebleu(folder, systems, *options):
    """What the sacrebleu command prints about the systems."""
    for name, lines in {"first": FIRST, "second": SECOND, **systems}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "first", "second", "-i", *systems, *options]
    command += ["-m", "bleu", "chrf", "ter", "--width", "17"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, check=True, encoding="utf-8"
    ).stdout


def signature_of(name, outputs, references, tokenize="auto"):
    scores = text.corpus_scores(outputs, references, [name], tokenize)
    return scores.details[name]["signature"]


@pytest.mark.parametrize("tokenize", ["13a", "char"])
def test_scores_signatures_and_intervals_are_those_of_the_sacrebleu_command(tmp_path, tokenize):
    options = ["--format", "json", "--confidence", "--tokenize", tokenize]
    theirs = json.loads(sacrebleu(tmp_path, {"system": HYPOTHESES}, *options))
    ours = text.corpus_scores(HYPOTHESES, REFERENCES, tokenize=tokenize)
    for name, reported in zip(("bleu", "chrf", "ter"), theirs):
        mean, half_width = reported["confidence_mean"], reported["confidence_var"]
        low, high = max(0.0, mean - half_width), mean + half_width
        interval = [low, high if name == "ter" else min(100.0, high)]
        details = {"signature": reported["signature"], "mean": mean, "interval": interval}
        assert (ours.scores[name], ours.details[name]) == (reported["score"], details)


def paired_test(hypotheses, other, references, metrics=("bleu", "chrf", "ter"), tokenize=text.AUTO):
    """The p-value of the difference of two systems in each metric."""
    ours, theirs = (
        text.corpus_scores(each, references, metrics, tokenize, intervals=False).right
        for each in (hypotheses, other)
    )
    return {name: each.p_value(theirs[name]) for name, each in ours.items()}


def test_p_values_are_those_of_the_sacrebleu_command(tmp_path):
    systems = {"other": OTHER, "ours": HYPOTHESES}
    table = sacrebleu(tmp_path, systems, "--format", "latex", "--paired-bs")
    p_values = paired_test(HYPOTHESES, OTHER, REFERENCES, tokenize="13a")
    # Four decimals tell all p-values of 1,000 resamples apart, for they are multiples of 1/1001.
    assert [f"{p:.4f}" for p in p_values.values()] == re.findall(r"p = (\S+)\)", table)
    assert list(p_values) == ["bleu", "chrf", "ter"]


def test_what_is_the_same_differs_by_chance():
    names = ["bleu", "chrf", "ter", "exact_match"]
    found = paired_test(HYPOTHESES, HYPOTHESES, REFERENCES, names)
    assert found == dict.fromkeys(names, 1.0)


def test_the_draws_of_two_systems_are_pairs_even_if_nothing_seeds_them(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "None")
    better = ["the cat sat on a mat .", *HYPOTHESES[1:]]
    worse = ["the cat sat on a mat", *HYPOTHESES[1:]]
    # no draw differs less
    assert paired_test(better * 20, worse * 20, REFERENCES * 20, ["ter"])["ter"] < 0.01
    assert "seed:none" in signature_of("ter", better, REFERENCES)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "exact_match", "token_error_rate"])
def test_a_single_sentence_proves_nothing(name):
    assert paired_test(["a b c d e"], ["a b c d x"], [["a b c d e"]], [name]) == {name: 1.0}


def test_resamples_do_not_fill_the_memory():
    sentences = 2_000
    outputs, references = ["a b c d"] * sentences, [["a b c e"]] * sentences
    tracemalloc.start()
    text.corpus_scores(outputs, references, ["bleu"])
    paired_test(outputs, references[0] * sentences, references, ["bleu"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000 * sentences, "sacrebleu's bootstrap takes 40,000 bytes a sentence for BLEU"


def test_tokens_as_they_are_may_look_tokenised(caplog):
    outputs, references = ["a cat ."] * 100, [["a cat ."]] * 100
    assert "tok:none" in signature_of("bleu", outputs, references, "none")
    text.corpus_scores(outputs, references, ["bleu"])
    assert not caplog.text, "sacrebleu's own words are not ours"


def test_sentences_may_have_different_numbers_of_references():
    ragged = [FIRST[:1], REFERENCES[1], FIRST[2:3], REFERENCES[3]]
    ours = text.corpus_scores(HYPOTHESES, ragged, ["bleu"], "13a", intervals=False)
    theirs = BLEU().corpus_score(HYPOTHESES, [FIRST, [None, SECOND[1], None, SECOND[3]]])
    assert ours.scores == {"bleu": theirs.score}
    assert "nrefs:var" in ours.details["bleu"]["signature"]


def test_only_the_metrics_asked_for_are_computed_and_the_result_is_json():
    names = ["chrf", "exact_match"]
    quick = text.corpus_scores(HYPOTHESES, REFERENCES, names, intervals=False)
    full = text.corpus_scores(HYPOTHESES, REFERENCES)
    assert quick.scores == {name: full.scores[name] for name in names}
    assert list(quick.details) == ["chrf"]
    assert "interval" not in quick.details["chrf"]
    shown = [full.scores, full.details]
    assert json.loads(json.dumps(shown)) == shown


def test_exact_match_takes_any_reference_and_word_error_rate_is_the_rest():
    hypotheses, references = ["a b", "a B", "c"], [["x", "a b"], ["a b"], ["c", "d"]]
    assert text.exact_match(hypotheses, references).score == pytest.approx(200 / 3)
    assert text.word_error_rate(hypotheses, references).score == pytest.approx(100 / 3)


@cache
def distance(left, right):
    """Levenshtein distance by its recursive definition."""
    if not left or not right:
        return len(left) + len(right)
    last = distance(left[:-1], right[:-1]) + (left[-1] != right[-1])
    return min(last, distance(left[:-1], right) + 1, distance(left, right[:-1]) + 1)


@pytest.mark.parametrize("left", ["", "a", "a b c", "c b a", "a b a b a", "b a b"])
@pytest.mark.parametrize("right", ["a", "a b c", "b a b a", "d"])
def test_token_error_rate_is_edit_distance_over_reference_length(left, right):
    expected = 100 * distance(tuple(left.split()), tuple(right.split())) / len(right.split())
    assert text.token_error_rate([left], [[right]]).score == expected


@pytest.mark.parametrize("swapped", [False, True])
def test_what_nobody_sees_and_ligatures_are_no_errors(swapped):
    clean = ["Tom is tired of the office.", "A fine flag flies over it all day."]
    dirty = [
        "Tom is ti\u00adred of the o\ufb03ce.",
        "\ufeffA \ufb01ne flag\u200b flies over it all day.",
    ]
    hypotheses, references = (dirty, clean) if swapped else (clean, dirty)
    metrics = ("bleu", "chrf", "ter", "exact_match", "word_error_rate", "token_error_rate")
    scores = text.corpus_scores(hypotheses, [[each] for each in references], metrics).scores
    assert [round(scores[name], 6) for name in metrics] == [100.0, 100.0, 0.0, 100.0, 0.0, 0.0]


def test_models_do_not_read_what_scores_leave_out():
    """Every character but the tags of flags is cleared as for a model; of planes of which little or
    nothing is assigned, some."""
    planes = range(0x20000, 0xE0000, 97)
    for code in [*range(0xD800), *range(0xE000, 0x20000), *planes, *range(0xE0080, 0xE1000)]:
        assert text.cleared(chr(code)) == tokenizer_file.cleared(chr(code)), hex(code)


def test_decomposed_references_cost_no_edits_and_are_told_of_where_they_cost(caplog):
    outputs = ["나는 간다", "café"]
    references = [[normalize("NFD", each)] for each in outputs]
    assert text.token_error_rate(outputs, references).score == 0.0
    assert text.exact_match(outputs, references).score == 100.0
    text.corpus_scores(outputs, references, ["bleu"], intervals=False)
    assert not caplog.text
    text.corpus_scores(outputs, references, ["bleu"])
    assert "2 references hold decomposed characters (NFD), which no output does" in caplog.text


def test_token_error_rate_takes_the_nearest_reference_and_weighs_sentences_by_length():
    references = [["x y", "a b z"], ["c d e x", "q"]]
    assert text.token_error_rate(["a b", "c d e f"], references).score == 100 * 2 / 7
    # equally near: the longer
    assert text.token_error_rate(["a b"], [["a", "a b c"]]).score == 100 * 1 / 3


def test_blanks_and_composed_characters_do_not_make_an_output_wrong():
    """Outputs have single blanks and composed characters, whatever the references have."""
    references = [["ein Haus "], ["H  AH L OW"], ["a\u00a0b"], ["Bru\u0308cke", "x"], ["two"]]
    hypotheses = ["ein Haus", "H AH L OW", "a b", "Br\u00fccke", "tow"]
    assert text.exact_match(hypotheses, references).score == 80.0
    assert text.word_error_rate(hypotheses, references).score == pytest.approx(20.0)


SCORERS = [text.corpus_scores, text.exact_match, text.word_error_rate, text.token_error_rate]


@pytest.mark.parametrize("score", [*SCORERS, lambda h, r: paired_test(h, h, r)])
def test_counts_must_agree(score):
    with refusal("2 hypotheses but 1 references"):
        score(["a", "b"], [["a"]])
    with refusal("no sentence to score"):
        score([], [])
    with refusal("sentence 2 has no reference"):
        score(["a", "b"], [["a"], []])
    with refusal("references of sentence 1 are one string"):
        score(["a"], ["a"])


def test_both_systems_and_their_references_are_checked():
    with refusal("1 hypotheses but 2 references"):
        paired_test(["a", "b"], ["a"], [["a"], ["b"]])
    with refusal("references hold no token"):
        text.token_error_rate(["a"], [[" "]])


def test_unknown_names_are_answered_with_the_known_ones():
    with refusal("no metric is called 'blue'; known are: bleu, chrf, ter, exact_match"):
        text.corpus_scores(["a"], [["a"]], metrics=["blue"])
    with refusal("BLEU has no tokenizer 'klingon'; choose from 13a, char"):
        text.corpus_scores(["a"], [["a"]], tokenize="klingon")
    with refusal("BLEU has no tokenizer 'klingon'; choose from 13a, char"):
        text.check_metrics(["chrf"], "klingon")  # BLEU is scored in any case


@pytest.mark.parametrize(
    "tokenize, failure, message",
    [
        (
            "ko-mecab",
            RuntimeError("extra"),
            r"is not installed; run: pip install 'sacrebleu\[ko\]'",
        ),
        ("flores200", ImportError("a"), "is not installed; run: pip install sentencepiece"),
        ("flores200", OSError("no route"), r"could not be fetched \(no route\); connect once"),
    ],
)
def test_a_tokenizer_that_is_not_there_names_its_remedy(monkeypatch, tokenize, failure, message):
    class Unusable:
        TOKENIZERS = BLEU.TOKENIZERS

        def __init__(self, tokenize, force):
            raise failure

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", Unusable)
    with refusal(f"'{tokenize}' {message}"):
        text.corpus_scores(["a"], [["a"]], tokenize=tokenize)


def test_intervals_of_few_sentences_stay_where_scores_can_be():
    outputs, references = ["a b c d e", "a b c d", "x y"], [["a b c d e", "a b c d", "a b"]]
    names = ["bleu", "chrf", "ter"]
    found = text.corpus_scores(outputs, [[each] for each in references[0]], names)
    (low, high), (_, best), (least, _) = (found.details[name]["interval"] for name in names)
    assert 0.0 <= low < high == best == 100.0
    assert least == 0.0
    # hardly anything matches: sacrebleu's own bootstrap ends in a TypeError
    few = text.corpus_scores(["a b", "xyz", "q", "w"], [["a c"], ["d"], ["e"], ["f g h"]])
    assert all(len(few.details[name]["interval"]) == 2 for name in ("bleu", "chrf", "ter"))
    # more edits than there are words
    worse = text.corpus_scores(["a b c", "x y z"], [["d"], ["e f"]], ["ter"])
    low, high = worse.details["ter"]["interval"]
    assert 100.0 <= low < high
    perfect = text.corpus_scores(FIRST, REFERENCES, metrics=["ter"])
    assert (perfect.scores["ter"], perfect.details["ter"]["interval"]) == (0, [0, 0])


GOLD = "(S (A this) (B is (A a test)))"
# A guess for GOLD, after evalb's sample.tst; the constituents that match, those of the guess.
SAMPLE = [
    ("(S (A this) (B is (A a test)))", 4, 4),
    ("(S (A this) (B is (C a test)))", 3, 4),
    ("(S (C this) (B is (A a test)))", 3, 4),
    ("(S (A this) (B is a (A test)))", 3, 4),
    ("(S (A this is) (A a test))", 2, 3),
    ("(S this is a test)", 1, 1),
    ("this is a test", 0, 0),
    ("(S (A this) (B is (A (A a test))))", 4, 5),
    ("(S (A this) (B is (A (A (A (A (A a test)))))))", 4, 8),
    ("(S (A this) (B (Z is (A a test))))", 4, 5),
    ("(TOP (S (A this) (B is (A a test))))", 4, 4),
    ("(S (A this) (B is not (A a test)))", 0, 4),  # another number of words
    ("", 0, 0),
]


def f1(guess, gold):
    return labelled_f1([guess], [[gold]]).score


@pytest.mark.parametrize("guess, matched, guessed", SAMPLE)
def test_evalb_s_examples(guess, matched, guessed):
    assert f1(guess, GOLD) == pytest.approx(200 * matched / (4 + guessed))
    beside = labelled_f1([GOLD, guess], [[GOLD]] * 2).score  # a wrong tree costs its brackets
    assert beside == pytest.approx(200 * (4 + matched) / (8 + 4 + guessed))


@pytest.mark.parametrize(
    "guess, gold, expected",
    [
        ("(S (ADVP XX )ADVP XX )S", "(S (PRT XX )PRT XX )S", 100),
        # where punctuation hangs, what it is called, and what holds nothing else
        ("(S (NP XX , )NP (VP XX . )VP )S", "(S (NP XX )NP , (VP XX )VP . )S", 100),
        ("(S (NP XX XX )NP (VP XX )VP XX )S", "(S (NP XX )NP , (VP XX )VP . )S", 100),
        ("(S (NP XX )NP (PRN : )PRN (VP XX )VP )S", "(S (NP XX )NP : (VP XX )VP )S", 100),
        ("(NP (NP XX )NP )NP", "(NP XX )NP", 200 / 3),  # one of two is matched
        ("(X (S XX )S )X", "(X (S (S XX )S )S )X", 80),
        ("(ROOT (S1 (S XX )S )S1 )ROOT", "(TOP (S XX )S )TOP", 100),
        ("(S (NP XX )NP XX )S", "(S (NP XX XX )NP )S", 50),
        ("(S (NP XX XX", "(S (NP XX XX )NP )S", 100),  # what is open ends at the end
        (")S ) (S (NP XX XX )NP )S", "(S (NP XX XX )NP )S", 100),  # nothing to close
        # references of words, and one notation against the other
        ("(S (NP The cat) , (VP sat --))", "(S (NP The cat ,) (VP sat) --)", 100),
        ("(S (NP The cat) (VP sat) .)", "(S (NP XX XX )NP (VP XX )VP . )S", 100),
    ],
)
def test_by_hand(guess, gold, expected):
    assert f1(guess, gold) == pytest.approx(expected)


def test_counts_are_added_up_over_sentences_and_the_first_reference_counts():
    guesses, references = zip(*((guess, [GOLD, "(X this)"]) for guess, *_ in SAMPLE))
    matched, guessed = (sum(column) for column in list(zip(*SAMPLE))[1:])
    expected = 200 * matched / (4 * len(SAMPLE) + guessed)
    assert labelled_f1(guesses, references).score == pytest.approx(expected)
    assert corpus_scores(guesses, references, ["f1"]).scores == {"f1": pytest.approx(expected)}
    with refusal("the references hold no constituent, so there is no F1; give trees"):
        labelled_f1(["(S XX )S", "(S XX )S"], [["XX"], ["(TOP (NP . )NP )TOP"]])


def random_tree(draw, leaves, label="S"):
    """A tree over some of `leaves`, an iterator, until it is used up."""
    children = []
    for tag in leaves:
        children.append(Tree(tag, ("word",)))
        if draw.random() < 0.4:
            name = draw.choice(["NP", "VP", "PRT", "ADVP", "TOP"])
            children.append(random_tree(draw, leaves, name))
        if label != "S" and draw.random() < 0.4:
            break
    return Tree(label, tuple(children) or (Tree("NN", ("word",)),))


def spans(tree, gold_tags, start=0):
    """The constituents of a tree as sets of the words in them, in plain recursion; and the words
    passed."""
    if tree.is_tag:
        return Counter(), start + 1
    found, place = Counter(), start
    for child in tree.children:
        inside, place = spans(child, gold_tags, place)
        found += inside
    words = tuple(i for i in range(start, place) if gold_tags[i] not in [",", ":", "``", "''", "."])
    if words and tree.label != "TOP":
        found["ADVP" if tree.label == "PRT" else tree.label, words] += 1
    return found, place


def test_another_implementation_agrees():
    draw, matched, total, guesses, golds = random.Random(1), 0, 0, [], []
    while len(golds) < 300:
        tags = draw.choices(["NN", "DT", ",", "."], k=draw.randint(2, 8))
        guess, gold = (random_tree(draw, iter(tags)) for _ in range(2))
        tags = [tag for tag, _ in gold.leaves()]
        if len(tags) != len(list(guess.leaves())):
            continue
        left, right = spans(guess, tags)[0], spans(gold, tags)[0]
        matched, total = matched + (left & right).total(), total + left.total() + right.total()
        guesses.append(linearised(guess))
        golds.append([linearised(gold)])
    assert labelled_f1(guesses, golds).score == pytest.approx(200 * matched / total)
    assert 20 < 200 * matched / total < 90


def test_numbers_before_words_do_not_count():
    plain, numbered = "(S (NP XX )NP , (VP XX )VP . )S", "(S (NP #0XX )NP #1, (VP #2XX )VP #3. )S"
    assert read_tree(plain) == read_tree(numbered)
    assert read_tree("(S #1 )S")[0] == ["#1"]
    assert f1(numbered, plain) == f1(plain, numbered) == 100.0


KOREAN = ["나는 어제 학교에 갔다 .", "그는 집에서 밥을 먹는다 .", "우리는 내일 바다에 간다 ."]
JAPANESE = ["私は昨日学校へ行きました。", "彼は家でご飯を食べます。", "明日は海へ行きたいです。"]
CHINESE = ["我昨天去了学校。", "他在家里吃饭。", "我们明天去海边。"]
GERMAN = ["Ich ging gestern zur Schule.", "Er isst zu Hause.", "Wir fahren ans Meer."]


CONTINUOUS = {
    "Thai": ["เมื่อวานฉันไปโรงเรียน", "เขากินข้าวที่บ้าน", "พรุ่งนี้เราจะไปทะเล"],
    "Lao": ["ມື້ວານນີ້ຂ້ອຍໄປໂຮງຮຽນ", "ລາວກິນເຂົ້າຢູ່ເຮືອນ", "ມື້ອື່ນພວກເຮົາຈະໄປທະເລ"],
    "Khmer": ["ម្សិលមិញខ្ញុំទៅសាលារៀន", "គាត់ញ៉ាំបាយនៅផ្ទះ", "ស្អែកយើងទៅសមុទ្រ"],
    "Burmese": [
        "မနေ့ကကျွန်တော်ကျောင်းသွားတယ်", "သူအိမ်မှာထမင်းစားတယ်", "မနက်ဖြန်ပင်လယ်ကိုသွားမယ်"],
    "Tibetan": [
        "ཁ་སང་ང་སློབ་གྲྭར་ཕྱིན་པ་ཡིན།", "ཁོས་ནང་དུ་ཟས་ཟ་གི་འདུག", "སང་ཉིན་ང་ཚོ་མཚོར་འགྲོ་གི་ཡིན།"],
    "Javanese": [
        "ꦱꦸꦒꦼꦁꦫꦮꦸꦃꦲꦶꦁꦏꦺꦴꦛ", "ꦲꦏꦸꦩꦔꦤ꧀ꦱꦼꦒꦩꦤꦶꦁꦲꦺꦴꦩꦃ", "ꦱꦺꦱꦸꦏ꧀ꦏꦶꦠꦩꦚꦁꦱꦼꦒꦫ"],
}  # fmt: skip


@pytest.mark.parametrize(
    "lines, name",
    [
        *[(KOREAN, "char"), (JAPANESE, "char"), (CHINESE, "zh"), (GERMAN, "13a")],
        *[(lines, "char") for lines in CONTINUOUS.values()],
    ],
)
def test_the_tokenization_follows_the_script_of_the_references(lines, name):
    references = [[line] for line in lines]
    assert text.tokenization_of(references) == name
    assert text.tokenization_of([[f"{line} (Python 3 API)"] for line in lines]) == name
    decomposed = [[normalize("NFD", line)] for line in lines]
    assert text.tokenization_of(decomposed) == name
    found = text.corpus_scores(lines, references, ["bleu", "chrf++", "ter"], intervals=False)
    assert f"tok:{name}" in found.details["bleu"]["signature"]
    assert found.scores == pytest.approx({"bleu": 100, "chrf++": 100, "ter": 0})
    assert "nw:2" in found.details["chrf++"]["signature"]
    given = text.corpus_scores(lines, references, ["bleu"], "none", intervals=False)
    assert "tok:none" in given.details["bleu"]["signature"]


def test_no_letters_are_words():
    assert text.tokenization_of([["1 2 3"], [""], ["!"]]) == "13a"
    assert text.tokenization_of([["Der Fluss heißt 黄河 auf Chinesisch."]]) == "13a"


@pytest.mark.parametrize("lines", [JAPANESE, CHINESE, KOREAN, *CONTINUOUS.values()])
def test_one_wrong_character_is_no_wrong_line(lines):
    outputs = [line[:2] + "之" + line[3:] for line in lines]
    references = [[line] for line in lines]
    own = text.corpus_scores(outputs, references, ["bleu", "ter"], intervals=False).scores
    words = text.corpus_scores(outputs, references, ["bleu", "ter"], "13a", intervals=False).scores
    assert own["bleu"] > 50
    assert own["bleu"] > words["bleu"] + 10
    assert own["ter"] < 40
    assert lines is KOREAN or words["ter"] >= 100


@pytest.mark.parametrize("first, kind", [(CONTINUOUS["Thai"], "char"), (CHINESE, "zh")])
@pytest.mark.parametrize("repeats", [1, 6])
def test_mixed_references_are_counted_line_by_line(first, kind, repeats):
    """The English lines have the counts of words, the others those of characters."""
    lines = [*first, *GERMAN * repeats]
    outputs = [line[:4] + "之" + line[5:] for line in lines]
    references = [[line] for line in lines]
    found = text.corpus_scores(outputs, references, ["bleu", "ter"], intervals=False)
    assert f"tok:{kind}+13a|" in found.details["bleu"]["signature"]
    assert "tok:tercom+char|" in found.details["ter"]["signature"]
    half = len(lines)
    separated = [
        " ".join(line) if i % half < len(first) else line.replace(".", " .")
        for i, line in enumerate([*outputs, *lines])
    ]
    separately = separated[:half], [[each] for each in separated[half:]], ["bleu"], "none"
    same = text.corpus_scores(*separately, intervals=False)
    assert found.scores["bleu"] == pytest.approx(same.scores["bleu"])
    assert paired_test(outputs, outputs, references, ["bleu", "ter"]) == {"bleu": 1, "ter": 1}


def test_a_rare_line_of_words_among_characters_is_counted_as_they_are():
    references = [[line] for line in [*JAPANESE * 10, "OK.", "1 2", ""]]
    assert "tok:char|" in signature_of("bleu", [each for [each] in references], references)


def test_bleu_of_references_without_four_tokens_means_nothing():
    names = ["bleu", "exact_match"]
    assert text.meaningful(names, "auto", [["a b c"], ["d", "e f"]]) == ["exact_match"]
    assert text.meaningful(names, "auto", [["a b c"], ["d", "e f g h"]]) == names
    assert text.meaningful(names, "char", [["a b"]]) == names, "it is asked for by name"
    assert text.meaningful(["chrf"], "no such", []) == ["chrf"]
