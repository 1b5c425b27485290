"""A classifier gives each text one answer, the same in any company, whatever the text holds."""

import json
import logging
import threading
from unittest.mock import Mock

import pytest
import torch

from tests.helpers import randomise
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.models.bert import Bert, Config
from transduct.predictors.text import encoder_input
from transduct.predictors.text_classification import (
    LONGEST_SPAN,
    Answers,
    Classifier,
    PredictConfig,
    best_span,
    check_labels,
    encode,
    fill_up,
    labels_of,
    make_batch,
)
from transduct.tasks.model import write_model

BEGIN, END = Tokenizer.BEGIN, Tokenizer.END
TEXTS = ["a b c", "c", "bad cab a b", "ab ba cd", "d c b a", "dab a cab b"]
PAIRS = [f"{question}\t{text}" for question, text in zip(TEXTS, reversed(TEXTS))]
STRANGE = ["", " \t\u3000 ", "a b c d " * 50, "abcd" * 50]
STRANGE += ["a 👩‍👩‍👧 b", "a\0b", "a\rb", "a\u2028b", "<s> a </s>", "한글"]
KINDS = ["sequence", "pair", "tokens", "span"]


def tokenizer(kind="character"):
    return Tokenizer.train(TEXTS, kind, 30)


def make(kind, subwords="character", labels=("x", "y", "z"), **model):
    """A classifier whose model knows nothing, but answers differently for every text."""
    torch.manual_seed(1)
    words = tokenizer(subwords)
    shape = {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 2, "dropout": 0.1}
    head = "sequence" if kind == "pair" else kind
    names = [] if kind == "span" else list(labels)
    shape |= {"max_length": 24, "head": head, "labels": len(names), **model}
    config = Config(words.size, **shape)
    bert = randomise(Bert(config), spread=1.0)
    for name, parameter in bert.named_parameters():
        if name in ("pooler.bias", "output.bias"):  # which else decide alone
            torch.nn.init.zeros_(parameter)
    return Classifier(bert, words, Answers(kind, names), PredictConfig())


@pytest.fixture(scope="module")
def made():
    return {kind: make(kind) for kind in KINDS}


def inputs_of(kind):
    return PAIRS if kind in ("pair", "span") else TEXTS


def test_the_answers_differ(made):
    """A control: a model that said the same to all would pass most of what follows."""
    for kind in KINDS:
        assert len(set(made[kind].predict(inputs_of(kind)))) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_many_texts_are_read_side_by_side_and_answered_as_before(made, kind, monkeypatch):
    texts, seen, before = inputs_of(kind) * 30, set(), torch.get_num_threads()
    expected, inner = made[kind].predict(texts[:6]), Classifier._scored

    def scored(self, pieces, device):
        seen.add(threading.get_ident())
        return inner(self, pieces, device)

    monkeypatch.setattr(Classifier, "_scored", scored)
    try:
        torch.set_num_threads(2)
        assert made[kind].predict(texts) == expected * 30
        assert seen
        assert threading.get_ident() not in seen
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("subwords", ["character", "bpe", "unigram", "word", "byte"])
def test_whatever_the_text_there_is_an_answer(subwords):
    for kind in ("sequence", "pair"):
        pairs = [f"{one}\t{two}" for one in STRANGE for two in STRANGE]
        texts = STRANGE if kind == "sequence" else pairs
        assert set(make(kind, subwords).predict(texts)) <= {"x", "y", "z"}
    tagged = make("tokens", subwords).predict(STRANGE)
    assert [len(tags.split()) for tags in tagged] == [len(text.split()) for text in STRANGE]
    spans = make("span", subwords).predict([f"a\t{text}" for text in STRANGE])
    for text, answer in zip(STRANGE, spans):
        assert answer in " ".join(text.split())
        assert bool(answer) == bool(text.split())


def test_what_the_model_reads_of_a_text():
    [[piece]], cut = encode(tokenizer(), "sequence", [["a b"]], 24)
    expected = [BEGIN, *tokenizer().encode(["a b"])[0], END]
    assert (piece.first, piece.second, cut) == (expected, [], 0)
    [[piece]], cut = encode(tokenizer(), "sequence", [["a b c d"]], 6)
    assert (len(piece.first), cut) == (6, 1)
    [[piece]], _ = encode(tokenizer(), "sequence", [[""]], 6)
    assert piece.first == [BEGIN, END]
    assert encode(tokenizer(), "sequence", [], 6) == ([], 0)


def test_where_the_words_of_a_text_stand():
    """Characters: ▁ab is three tokens, ▁c two."""
    [[piece]], _ = encode(tokenizer(), "tokens", [["ab c d"]], 24)
    assert (piece.starts, piece.ends) == ([1, 4, 6], [3, 5, 7])
    [[piece]], _ = encode(tokenizer(), "span", [["d", "ab c d"]], 24)
    assert (len(piece.first), len(piece.second)) == (4, 8)
    assert (piece.starts, piece.ends) == ([4, 7, 9], [6, 8, 10])
    ids = piece.first + piece.second
    spans = [ids[a : b + 1] for a, b in zip(piece.starts, piece.ends)]
    assert tokenizer().decode(spans) == ["ab", "c", "d"]


def test_a_word_that_nobody_sees_keeps_its_place():
    """Tags and spans count the words of a text as it is."""
    for kind, texts in (("tokens", ["ab \u200b c \xad"]), ("span", ["a", "ab \u200b c \xad"])):
        [[piece]], _ = encode(tokenizer(), kind, [texts], 24)
        ids = piece.first + piece.second
        words = [ids[a : b + 1] for a, b in zip(piece.starts, piece.ends, strict=True)]
        unknown = [Tokenizer.UNKNOWN]
        assert words == [*tokenizer().encode(["ab"]), unknown, *tokenizer().encode(["c"]), unknown]


@pytest.mark.parametrize("subwords", ["character", "bpe", "unigram", "word", "byte", "verbatim"])
def test_the_border_of_two_words_is_read(subwords):
    words = tokenizer(subwords)
    for kind, texts in (("tokens", ["ab  a\tc "]), ("span", ["a", "ab  a\tc "])):
        [[piece]], _ = encode(words, kind, [texts], 24)
        ids = piece.first + piece.second
        assert ids[piece.starts[0] : -1] == words.encode(["ab a c"])[0], "as the text itself"
        read = words.decode([ids[a : b + 1] for a, b in zip(piece.starts, piece.ends)])
        assert [each.strip() for each in read] == ["ab", "a", "c"]


def test_words_to_tag_come_in_pieces_and_none_is_lost():
    examples = [["ab c d"], [""], ["abcdabcd a"]]
    pieces, cut = encode(tokenizer(), "tokens", examples, 7)  # of five tokens each
    assert [[len(piece.starts) for piece in each] for each in pieces] == [[2, 1], [], [1, 1]]
    assert cut == 2, "two texts are in pieces; that a word of one is cut does not make it two"
    assert encode(tokenizer(), "tokens", [["abcdabcd"], ["a"]], 7)[1] == 1
    assert all(len(piece.first) <= 7 for each in pieces for piece in each)
    assert pieces[2][0].ends == [5]


def test_of_a_question_and_a_text_the_longer_is_cut_with_its_words():
    [[piece]], cut = encode(tokenizer(), "span", [["d", "ab c d"]], 11)
    assert (len(piece.first) + len(piece.second), cut) == (11, 1)
    # of the last word only the begin is left
    assert (piece.starts, piece.ends) == ([4, 7, 9], [6, 8, 9])
    [[piece]], cut = encode(tokenizer(), "span", [["d", "ab c d"]], 10)
    assert (piece.starts, piece.ends) == ([4, 7], [6, 8])


def test_a_batch_is_flat_and_its_places_count_from_its_own_begin():
    batch = make_batch([([1, 5, 2], [6, 2], [0], [7]), ([1, 2], [], [1, 2], [8, 9])])
    assert batch.ids.tolist() == [1, 5, 2, 6, 2, 1, 2]
    assert batch.types.tolist() == [0, 0, 0, 1, 1, 0, 0]
    assert batch.segments.lengths.tolist() == [5, 2]
    assert (batch.places.tolist(), batch.labels.tolist()) == ([0, 6, 7], [7, 8, 9])
    assert (batch.tokens, batch.counts) == (7, {"labels": 3.0})
    assert make_batch([([1, 2], [], [], [])]).labels.dtype == torch.int64


def test_the_best_span_is_the_best_of_all_that_are_short_enough():
    generator = torch.Generator().manual_seed(1)
    for words in (1, 2, 7, LONGEST_SPAN + 20):
        scores = torch.randn(words, 2, generator=generator)
        scores[-1, 1] += 5.0 * (words > 30)  # so that the best start lies too far from the best end
        scores[0, 0] += 5.0 * (words > 30)
        spans = [(a, b) for a in range(words) for b in range(a, min(words, a + LONGEST_SPAN))]
        expected = max(spans, key=lambda span: float(scores[span[0], 0] + scores[span[1], 1]))
        assert best_span(scores) == expected


def test_probabilities_add_up_and_agree_with_the_answer(made):
    for kind in ("sequence", "pair"):
        found = made[kind].probabilities(inputs_of(kind))
        assert [max(each, key=each.get) for each in found] == made[kind].predict(inputs_of(kind))
        assert all(sum(each.values()) == pytest.approx(1.0) for each in found)
        assert all(list(each) == ["x", "y", "z"] for each in found)
    with refusal("probabilities are of labels of texts; this model's kind is 'tokens'"):
        made["tokens"].probabilities(["a"])


@torch.inference_mode()
def test_n_grams_vote_beside_the_encoder():
    classifier, plain = make("sequence", n_grams=3), make("sequence")
    classifier.model.load_state_dict(plain.model.state_dict(), strict=False)
    ids = classifier.tokenizer.encode(TEXTS)
    tokens, _, segments, _ = encoder_input(ids, None, classifier.longest)
    votes = classifier.model.n_grams(tokens, segments)
    assert votes.abs().min() > 0
    both = classifier.probabilities(TEXTS), plain.probabilities(TEXTS)
    for found, without, vote in zip(*both, votes, strict=True):
        expected = (torch.tensor([*without.values()]).log() + vote).softmax(0)
        torch.testing.assert_close(torch.tensor([*found.values()]), expected)


@pytest.mark.parametrize("kind", ["sequence", "pair", "tokens"])
def test_labels_are_scored(made, kind):
    inputs = inputs_of(kind)
    answers = made[kind].predict(inputs)
    report = made[kind].evaluate((inputs, answers))
    assert report.scores == {"accuracy": 100.0, "f1": 100.0}
    blanks = made[kind].evaluate((inputs, [f" {answer}\t" for answer in answers]))
    assert blanks.scores == report.scores
    assert report.outputs == answers
    assert (report.details["examples"], report.details["cut"]) == (len(inputs), 0)
    assert report.details["accuracy"]["interval"][1] == 100.0
    first, *rest = answers[0].split()  # of a label there is no rest
    answers[0] = " ".join(["x" if first != "x" else "y", *rest])
    counted = sum(len(answer.split()) for answer in answers)
    accuracy = made[kind].evaluate((inputs, answers)).scores["accuracy"]
    assert accuracy == pytest.approx(100 * (counted - 1) / counted)


def test_spans_are_scored(made):
    answers = made["span"].predict(PAIRS)
    assert made["span"].evaluate((PAIRS, answers)).scores == {"exact_match": 100.0, "f1": 100.0}
    found = made["span"].evaluate((PAIRS, ["nowhere", *answers[1:]]))
    # an answer that is not in the text is not found
    assert found.scores["exact_match"] == pytest.approx(100 * 5 / 6)


@pytest.mark.parametrize("other", [("tokens", {}), ("sequence", {"labels": ("x", "w")})])
def test_a_model_of_other_answers_is_not_compared_with(made, other):
    answers = made["sequence"].predict(TEXTS)
    with refusal("the other model has other labels or another kind of answer; compare models of"):
        made["sequence"].evaluate((TEXTS, answers), make(other[0], **other[1]))


def test_another_model_is_compared_with(made):
    other = make("sequence", num_heads=4)
    answers = made["sequence"].predict(TEXTS)
    details = made["sequence"].evaluate((TEXTS, answers), other).details
    theirs = sum(a == b for a, b in zip(other.predict(TEXTS), answers))
    assert details["against"]["accuracy"] == pytest.approx(100 * theirs / 6)
    assert details["p_values"]["accuracy"] == pytest.approx(min(1.0, 2 * 0.5 ** (6 - theirs)))
    assert theirs < 6
    same = made["span"].evaluate((PAIRS, ["a"] * 6), made["span"]).details
    assert same["p_values"] == {"exact_match": 1.0}


def test_tags_of_one_sentence_are_no_examples_of_their_own(made, monkeypatch):
    answers = [" ".join("xyz"[(i + j) % 3] for j in range(30)) for i in range(20)]
    wrong = [("z y x " * 10).strip(), *answers[1:]]  # 20 wrong tags, all in one sentence
    ours, theirs = made["tokens"], make("tokens", num_heads=4)
    for model, found in ((ours, answers), (theirs, wrong)):
        monkeypatch.setattr(model, "_outputs", lambda *_: ([[]] * 20, 0))
        monkeypatch.setattr(model, "_answer", Mock(side_effect=found * 2))
    report = ours.evaluate((["a " * 30] * 20, answers), theirs)
    assert report.details["against"]["accuracy"] == pytest.approx(100 * 580 / 600)
    assert report.details["p_values"]["accuracy"] > 0.2, "McNemar's test of tags says 2e-6"
    low, high = theirs.evaluate((["a " * 30] * 20, answers)).details["accuracy"]["interval"]
    # Wilson's interval of tags is 94.9 to 97.8
    assert (low, high) == (pytest.approx(90.0, abs=1.0), 100.0)


def test_what_is_cut_is_counted_and_said(made, caplog):
    texts = ["a b c d " * 9, "a"]
    assert made["sequence"].evaluate((texts, ["x", "x"])).details["cut"] == 1
    with caplog.at_level(logging.WARNING, "transduct"):
        made["sequence"].predict(texts)
        made["sequence"].predict(["a", " ", ""])
    said = ["1 of 2 texts are longer than 24 tokens: cut, or tagged in pieces"]
    assert caplog.messages == [*said, "2 of 3 texts are empty: what is said of them is a guess"]
    assert made["sequence"].evaluate((["a", " "], ["x", "x"])).details["empty"] == 1


def test_what_cannot_be_answered_is_said(made):
    with refusal("found one text, expected a list of texts"):
        made["sequence"].predict("a b")
    with refusal("input 2: found one text, expected two with a tab between: b c"):
        made["pair"].predict(["a\tb", "b c"])
    with refusal(r"options: unknown key 'decoding.beam'; known are: batch_tokens"):
        made["pair"].predict(["a\tb"], beam=3)


def test_the_labels_in_an_answer():
    assert labels_of("sequence", ["a b"], " good film ", file="here") == ["good film"]
    assert labels_of("tokens", ["a b"], " x  y ", file="here") == ["x", "y"]
    assert labels_of("span", ["a", "a b"], "b", file="here") == []
    with refusal("here: found 2 words and 1 tags, expected one tag for each word; fix the row"):
        labels_of("tokens", ["a b"], "x", file="here")
    with refusal("here: found no label, expected one; fix the row or set columns"):
        labels_of("pair", ["a", "b"], " ", file="here")


def test_labels_that_training_never_has_are_refused():
    check_labels(Answers("tokens", ["x", "y"]), (["a b"], ["y x"]), "f.tsv")
    remedy = "training has: x, y; fix the row, or train on rows that have it"
    with refusal(f"f.tsv, row 2: unknown label 'z'; {remedy}"):
        check_labels(Answers("tokens", ["x", "y"]), (["a", "a b"], ["y", "y z"]), "f.tsv")
    with refusal(r"^row 1: unknown label 'w'"):
        make("sequence").evaluate((["a"], ["w"]))


def test_attention_is_that_of_every_layer_and_head(made):
    found = made["pair"].attention("a b\tc")
    assert found.source == ["<s>", "▁", "a", "▁", "b", "</s>", "▁", "c", "</s>"]
    assert list(found.weights) == ["encoder.0.self", "encoder.1.self"]
    size = len(found.source)
    for name, weights in found.weights.items():
        assert weights.shape == (2, size, size)
        assert torch.allclose(weights.sum(-1), torch.ones(2, size))
        assert found.labels(name) == (found.source, found.source)
    with refusal("found no words to attend to; give a text that holds some"):
        made["tokens"].attention(" ")


def test_a_model_directory_that_does_not_fit_together_is_refused(made, tmp_path):
    written(tmp_path / "kind", made["sequence"], {"answers": {"kind": "picture"}})
    with refusal(r"answers.kind is 'picture', expected 'sequence', 'pair', 'tokens' or"):
        load(tmp_path / "kind")
    written(tmp_path / "tokenizer", made["sequence"])
    tokenizer("byte").save(tmp_path / "tokenizer" / "tokenizer.json")
    with refusal("the tokenizers hold 259 tokens, the model"):
        load(tmp_path / "tokenizer")


def written(directory, classifier, settings=None):
    beside = directory.parent / "tokenizer.json"
    classifier.tokenizer.save(beside)
    answers = {"kind": classifier.answers.kind, "labels": classifier.answers.labels}
    settings = {"decoding": {}, **(settings or {"answers": answers})}
    write_model(directory, "text_classification", classifier.model, settings, [beside], "")


def load(directory):
    config = json.loads((directory / "config.json").read_text())
    return Classifier.load(directory, config, torch.device("cpu"), "float32")


@pytest.mark.parametrize("kind, most", [("sequence", 24), ("span", 48), ("tokens", 8)])
def test_a_batch_is_filled_up_to_a_shape_with_answers_that_do_not_count(kind, most):
    each = {"sequence": [0], "span": [1, 2], "tokens": [1, 2, 3]}[kind]
    labels = [] if kind == "span" else each
    batch = make_batch([([1, 5, 6, 2], [], each, labels), ([1, 5, 6, 7, 2], [], each, labels)])
    filled = fill_up(batch, kind, 100, 20)
    assert (len(filled.ids), len(filled.segments), len(filled.places)) == (128, 24, most)
    assert filled.counted.tolist() == [1.0] * 2 * len(each) + [0.0] * (most - 2 * len(each))
    assert len(filled.labels) == (0 if kind == "span" else most)
    assert (filled.tokens, filled.counts) == (batch.tokens, batch.counts)
    unusual = make_batch([([1, 5, 2], [], [0], [0])] * 40)
    assert fill_up(unusual, kind, 100, 20) is unusual
