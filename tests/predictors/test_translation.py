"""A translator gives one answer to each text, the same in any company, and its scores and weights
are the model's."""

import json
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

import transduct
from tests.helpers import compiled, randomise, tiny, with_settings
from tests.refusals import refusal
from transduct.data.replacements import Replacement
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.shortlist import Shortlist
from transduct.errors import TransductError
from transduct.inference import engine, fused
from transduct.inference.batches import flat
from transduct.inference.ensemble import Ensemble
from transduct.inference.settings import DecodingConfig
from transduct.interop import int8
from transduct.kernels import cpu
from transduct.models import rnn
from transduct.predictors.base import Attention
from transduct.predictors.text import target_ids
from transduct.predictors.translation import DERIVED, FAMILIES, Translation, Translator
from transduct.storage import SHORTLIST
from transduct_bench.ours import untrained

TEXTS = [source for source, _ in generate("reverse", 12)]
STRANGE = ["", " \t\u3000 ", "a b c d e " * 100, "a 👩‍👩‍👧 b", "a\0b", "a\rb", "\ufeffa"]
STRANGE += ["a\u2028b", "a\u0085b", "\u1112\u1161\u11ab", "<s> a </s> <unk>"]


def make(kind="bpe", changes=(), **model):
    """A translator whose model knows nothing, but chooses differently for every text."""
    tokenizer = Tokenizer.train([*TEXTS, *TEXTS, "한글 가나다", "A B."], kind, 120)
    sizes = {"source_size": tokenizer.size, "target_size": tokenizer.size, "tie": "none"}
    model = randomise(tiny(**{**sizes, "max_length": 24, **model}), spread=0.4)
    return Translator(model, tokenizer, tokenizer, DecodingConfig(beam=4), changes)


@pytest.fixture(scope="module")
def translator():
    return make()


def tokens(translations):
    return [translation.tokens for translation in translations]


def test_the_texts_are_told_apart(translator):
    """A control: a model that said the same to all would pass most of what follows."""
    assert len({translation.text for translation in translator.translate(TEXTS)}) > 6


@pytest.mark.parametrize("kind", ["bpe", "byte", "unigram", "character", "word"])
def test_whatever_the_text_there_is_one_translation_of_one_line(kind):
    translator = make(kind, num_heads=2)
    texts = [text for strange in STRANGE for text in ("a b", strange)]
    translations = translator.translate(texts, beam=2)
    assert len(translations) == len(texts)
    assert not any("\n" in translation.text for translation in translations)
    assert len({tuple(translation.tokens) for translation in translations[::2]}) == 1
    for translation in translations:
        assert translation.score <= 0.0
        assert not {Tokenizer.UNKNOWN, Tokenizer.BEGIN, Tokenizer.END} & set(translation.tokens)


def test_any_mix_of_texts_is_answered_as_each_is_alone(translator):
    draw = random.Random(1)
    several = ["\n\n", "a b\n\n* c", "  - a\r\n", "a " * 60]
    items = [*several, *TEXTS[:2], *(text for text in STRANGE if len(text) < 100)]
    alone = {text: translator.translate([text], beam=2)[0] for text in items}
    for _ in range(4):
        mix = draw.choices(items, k=draw.randint(2, 8))
        for text, found in zip(mix, translator.translate(mix, beam=2), strict=True):
            assert (found.text, found.tokens) == (alone[text].text, alone[text].tokens)


def test_a_model_of_one_pair_may_be_told_its_own_languages(translator, monkeypatch):
    """Which a file of translators needs to be filled."""
    monkeypatch.setattr(translator, "pair", {"source_language": "de", "target_language": "en"})
    named = translator.translate(["a b"], source_language="de-AT", target_language="English")
    assert named == translator.translate(["a b"])
    with refusal("unknown language 'fr'; this model has en"):
        translator.translate(["a b"], target_language="fr")


def test_nothing_becomes_nothing(translator):
    texts = ["", " \t ", "\x1c", "\u200b", "\ufeff\u200d"]
    scores = translator.score(texts, [[]] * 5)
    for translation, score in zip(translator.translate(texts), scores, strict=True):
        assert (translation.text, translation.tokens) == ("", [])
        assert translation.score < 0.0
        assert translation.score == pytest.approx(score)
        assert [alternative.text for alternative in translation.alternatives] == [""]
    assert translator.translate([]) == []


def test_characters_that_nobody_sees_change_no_translation(translator):
    letters = "\xad\u200b\ufeff\u200e\u2060"
    odd = [
        letter + text.replace("a", f"a{letter}") + letter for letter in letters for text in TEXTS
    ]
    plain = translator.translate(TEXTS) * len(letters)
    for text, found, expected in zip(odd, translator.translate(odd), plain, strict=True):
        assert (found.text, found.tokens) == (expected.text, expected.tokens)
        assert translator.unknown(text) == []


def test_what_never_reaches_the_model_is_not_counted_as_unknown(translator, caplog):
    assert translator.unknown("* a\n* b €\n—\n- c") == ["€"]
    assert translator.unknown("* a €") == ["*", "€"], "one line is read as it is"
    translator.translate(["* a\n* b"])
    translator.translate(["* a"], sentences=True)
    assert not caplog.records
    translator.translate(["* a\n* b €"])
    assert "1 unknown characters or words in 1 texts" in caplog.text


def test_each_piece_of_a_line_has_what_its_own_placeholders_stand_for():
    rules = [Replacement("source", r"\d+", "한", 1)]
    translator = make(changes=rules)
    text = " ".join(f"a b c d {number}" for number in range(10, 30))
    pieces = translator.plan([text]).pieces
    assert len(pieces) > 2
    for piece in pieces:
        [shown] = translator.source_tokenizer.decode([piece.ids])
        assert shown.count("한") == len(piece.replaced)
    values = [value for piece in pieces for _, value in piece.replaced]
    assert values == [str(number) for number in range(10, 30)]


def test_composed_and_decomposed_text_are_the_same(translator):
    composed, decomposed = translator.translate(["한 가", "\u1112\u1161\u11ab \u1100\u1161"])
    assert composed == decomposed


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"temperature": 1.0, "seed": 5}])
def test_a_text_is_translated_alike_alone_in_a_batch_and_shuffled(translator, options):
    together = tokens(translator.translate(TEXTS, **options))
    assert together == [tokens(translator.translate([text], **options))[0] for text in TEXTS]
    order = random.Random(1).sample(range(len(TEXTS)), len(TEXTS))
    shuffled = tokens(translator.translate([TEXTS[i] for i in order], batch_tokens=30, **options))
    assert shuffled == [together[i] for i in order]


def test_samples_depend_on_their_seed(translator):
    first, again, other = (
        tokens(translator.translate(TEXTS, temperature=1.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_samples_are_as_many_as_are_shown_unless_the_call_says_how_many(translator):
    def drawn(**options):
        return translator.translate(TEXTS, temperature=1.0, seed=3, **options)

    assert translator.decoding.beam == 4
    assert tokens(drawn()) == tokens(drawn(beam=1)) != tokens(drawn(beam=4))
    assert {len(each.alternatives) for each in drawn()} == {1}
    assert max(len(each.alternatives) for each in drawn(n_best=3)) == 3


def test_numbers_and_ids_may_be_those_of_numpy(translator):
    plain = translator.translate(["a b"], 2, beam=3, prefixes=[[20, 21]])
    two, three, prefix = np.int64(2), np.int64(3), np.array([20, 21])
    assert translator.translate(["a b"], two, beam=three, prefixes=[prefix]) == plain
    assert translator.score(np.array(["a b"]), np.array(["b"])) == translator.score(["a b"], ["b"])


def test_the_n_best_list_is_sorted_without_doubles(translator):
    for translation in translator.translate(TEXTS, n_best=4, length_penalty=0.0):
        texts = [alternative.text for alternative in translation.alternatives]
        scores = [alternative.score for alternative in translation.alternatives]
        assert 1 < len(texts) <= 4
        assert len(set(texts)) == len(texts)
        assert scores == sorted(scores, reverse=True)
        assert (translation.text, translation.score) == (texts[0], scores[0])


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 3, "length_penalty": 2.0}, {"temperature": 1.5}]
)
def test_a_score_is_that_of_forced_decoding(translator, options):
    found = translator.translate(TEXTS, **options)
    forced = translator.score(TEXTS, tokens(found))
    assert [translation.score for translation in found] == pytest.approx(forced, rel=1e-5, abs=1e-4)


def test_a_score_is_the_sum_of_the_log_probabilities_the_end_included(translator):
    """Token by token, each from a prefix decoded on its own."""
    [source], target = translator.source_tokenizer.encode(["a b"]), [5, 9, 7]
    expected, device = 0.0, torch.device("cpu")
    memory_tokens, segments = flat([[*source, Tokenizer.END]], device)
    with torch.no_grad():
        memory = translator.model.encode(memory_tokens, segments)
        for place, token in enumerate([*target, Tokenizer.END]):
            inputs, prefix = flat([[Tokenizer.BEGIN, *target[:place]]], device)
            hidden = translator.model.decode(inputs, prefix, memory, segments)
            expected += translator.model.logits(hidden)[-1].log_softmax(-1)[token].item()
    assert translator.score(["a b"], [target]) == [pytest.approx(expected, rel=1e-5, abs=1e-4)]


def test_targets_may_be_texts_and_ids_side_by_side(translator):
    [ids] = translator.target_tokenizer.encode(["c d"])
    mixed = translator.score(["a", "b", "a", ""], ["c d", ids, ids, ""])
    assert mixed[0] == pytest.approx(mixed[2], abs=1e-4)
    assert mixed[1] == pytest.approx(translator.score(["b"], ["c d"])[0], abs=1e-4)
    assert translator.score([], []) == []


@pytest.mark.parametrize(
    "texts, targets, message",
    [
        (["a", "b"], ["a"], "found 2 sources and 1 targets; give as many of each"),
        (["a"], [[5] * 24], "pair 1: 24 tokens, the model takes 23; shorten it$"),
        (["a", "a " * 40, "b " * 30], ["a", "a", "b " * 24], "pair 2: 40 tokens, .*; shorten it$"),
        (["a", "b"], ["a", b"ab"], r"pair 2: found b'ab', expected a text, or ids from 0 to \d+"),
    ],
)
def test_pairs_that_cannot_be_scored_are_refused(translator, texts, targets, message):
    with refusal(message):
        translator.score(texts, targets)


def test_scores_are_told_before_all_are_known(translator, monkeypatch):
    expected, asked, real = translator.score(TEXTS[:5], TEXTS[:5]), [], engine.score
    monkeypatch.setattr("transduct.predictors.translation.SCORED", 2)
    monkeypatch.setattr(engine, "score", lambda *given: asked.append(len(given[1])) or real(*given))
    scores = translator.scores(TEXTS[:5], TEXTS[:5])
    first = [next(scores), next(scores)]
    assert asked == [2]
    assert [*first, *scores] == pytest.approx(expected, abs=1e-4)
    assert asked == [2, 2, 1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bean": 3}, "options: unknown key 'decoding.bean'; did you mean 'beam'?"),
        ({"beam": "5"}, "options: decoding.beam is the text '5', expected a whole number"),
        ({"n_best": 1.5}, "n_best is 1.5, must be a whole number, at least 1"),
        ({"n_best": 0}, "n_best is 0, must be a whole number, at least 1"),
        ({"n_best": -1}, "n_best is -1, must be a whole number, at least 1"),
        ({"n_best": 5, "beam": 4}, "n_best is 5, the beam only 4; ask for a beam of 5"),
    ],
)
def test_options_that_do_not_exist_are_refused(translator, options, message):
    with pytest.raises(TransductError) as caught:
        translator.translate(["a"], **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("beam", [1, 3])
def test_captured_decoding_changes_nothing(beam):
    translator, texts = make(), ["a b c", "", "b", "c a c a b"]
    found, expected = (
        translator.translate(texts, n_best=beam, beam=beam, captured=asked)
        for asked in (True, False)
    )
    assert [[a.tokens for a in t.alternatives] for t in found] == [
        [a.tokens for a in t.alternatives] for t in expected
    ]
    assert [t.score for t in found] == pytest.approx([t.score for t in expected], abs=1e-4)


def test_a_quantised_model_answers_and_scores_alone_as_in_company(
    trained_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(fused, "LONGEST", 6)  # sentences on both sides of it
    int8.convert(trained_run / "model", tmp_path / "int8")
    model = transduct.load(str(tmp_path / "int8"), "cpu")
    texts = ["a b c", "c a c a b c b a c", "b", "c b a", "a a"]
    together = model.translate(texts, workers=1)
    alone = [model.translate([text])[0] for text in texts]
    targets = [translation.tokens for translation in together]
    assert [translation.tokens for translation in alone] == targets
    scored = [model.score([text], [target])[0] for text, target in zip(texts, targets)]
    # PyTorch's own layers round by the shape of a batch; the kernels do not.
    least = 0.0 if cpu.library() is not None else 1e-6
    expected = pytest.approx([translation.score for translation in together], rel=least, abs=0)
    assert [translation.score for translation in alone] == expected
    assert scored == pytest.approx(model.score(texts, targets), rel=least, abs=0)
    found, expected = (model.translate(texts, captured=asked) for asked in (True, False))
    assert [t.tokens for t in found] == [t.tokens for t in expected]


def test_captured_decoding_is_not_asked_of_models_that_cannot():
    recurrent = make()
    sizes = recurrent.source_tokenizer.size, recurrent.target_tokenizer.size
    recurrent.model = rnn.RNN(rnn.Config(*sizes)).eval()
    with refusal("captured search does not support RNN; leave captured out"):
        recurrent.translate(["a"], captured=True)
    with refusal("captured search does not support shortlist; leave captured out"):
        make().translate(["a"], captured=True, shortlist=True)


def test_options_of_a_call_turn_off_the_captured_search_that_a_model_asks_for():
    plain, captured, options = make(), make(), {"at_limit": "free"}
    captured.decoding = replace(plain.decoding, captured=True)
    assert captured.translate(["a b"], **options) == plain.translate(["a b"], **options)
    with refusal("does not support at_limit; leave"):
        captured.translate(["a b"], captured=True, **options)


def test_a_long_text_is_parsed_in_pieces_of_whole_words_each_tree_over_its_own():
    # Two tokens to a word, as in recipes/wsj_parsing.yaml.
    numbered = [Replacement("source", r"\S+", "#{n} \\g<0>", cycle=9)]
    source = Tokenizer.train(["#0 #1 #2 #3 #4 #5 #6 #7 #8 w"], "word", 40)
    target = Tokenizer.train(["(S XX )S (NP XX )NP"], "word", 40)
    sizes = {"source_size": source.size, "target_size": target.size, "tie": "none"}
    model = randomise(tiny(**sizes, max_length=40))
    parser = Translator(model, source, target, DecodingConfig(constraint="tree"), numbered)
    words = [f"w{number}" for number in range(50)]
    [found] = parser.translate([" ".join(words)])
    depth, held, trees = 0, 0, []
    for token in found.text.replace(")", " ) ").split():
        depth += token.startswith("(") - (token == ")")
        held += token in words
        if depth == 1 and token == ")":  # of what stands under TOP
            trees.append(held)
            held = 0
    assert trees == [12, 13, 12, 13]  # halves of halves, which of 39 tokens take 24 and 26
    assert [word for word in found.text.replace(")", " ").split() if word in words] == words


def test_a_shortlist_and_a_constraint_do_not_go_together(tmp_path):
    translator, text = make(), tmp_path / "text"
    text.write_text("a b c")
    translator.shortlist = Shortlist(**load_tensors(translator.shortlist_of(text)[SHORTLIST]))
    assert translator.translate(["a b c"], shortlist=True, beam=1)[0].tokens
    with refusal("a shortlist may lack what a constraint needs; leave one of them out"):
        translator.translate(["a"], shortlist=True, constraint="tree")
    with refusal("this model has no shortlist; make one: transduct convert"):
        make().translate(["a"], shortlist=True)
    several = make()
    several.model = Ensemble([several.model])
    with refusal("no shortlist; it can have none, without attention or as an ensemble: leave"):
        several.translate(["a"], shortlist=True)


# translations that begin as they are told


@pytest.mark.parametrize(
    "options", [{}, {"beam": 1}, {"n_best": 3}, {"temperature": 1.0, "beam": 2}]
)
def test_translations_begin_with_their_prefixes(translator, options):
    texts, prefixes = ["a b c", "d e", "f", "g h a", ""], ["c b", "", [20, 21, 22], "h", "a"]
    found = translator.translate(texts, prefixes=prefixes, **options)
    starts = target_ids(translator.target_tokenizer, prefixes, "prefix")
    for translation, start in zip(found[:4], starts, strict=False):
        assert all(other.tokens[: len(start)] == start for other in translation.alternatives)
    alone = translator.translate(texts[:1], prefixes=prefixes[:1], **options)
    free = translator.translate(texts[1:2], **options)
    assert tokens(found[:2]) == tokens([*alone, *free]), "as in company"
    assert found[4].text == "", "an empty text gives an empty translation"
    assert [t.score for t in found] == pytest.approx(translator.score(texts, tokens(found)))


def test_an_output_may_be_as_long_after_its_prefix_as_without_one():
    translator = make(max_length=64)
    # where 24 tokens are the most of "a" alone
    [found] = translator.translate(["a"], prefixes=["h " * 30], beam=1)
    assert found.tokens[:30] == translator.target_tokenizer.encode(["h " * 30])[0]


def test_the_prefix_of_a_long_text_is_that_of_its_first_piece(translator):
    words = list("abcdefgh" * 4)
    [whole] = translator.translate([" ".join(words)], prefixes=["h g"])
    parts = translator.translate([" ".join(words[:23]), " ".join(words[23:])], prefixes=["h g", ""])
    assert whole.tokens == [token for part in parts for token in part.tokens]


def test_prefixes_may_be_arrays_and_none_of_no_texts(translator):
    ids = translator.encode(["b c", "c b"])
    expected = translator.translate(["a", "b"], prefixes=ids)
    for made in (np.array(ids), torch.tensor(ids), tuple(ids)):
        assert translator.translate(["a", "b"], prefixes=made) == expected
    assert translator.translate(["a", "b"], prefixes=np.array(["b c", "c b"])) == expected
    assert translator.translate([], prefixes=[]) == []


@pytest.mark.parametrize(
    "prefixes, message",
    [
        (["a"], "found 2 texts and 1 prefixes; give a list with one for each"),
        ("ab", "found one text, expected a list of texts: write ['ab']"),
        (["a", "\ud800"], "contains an unpaired surrogate"),
        (["a", 5], "prefix 2: found 5, expected a text, or ids from 0 to"),
        (["a", "a " * 24], "prefix 2: 24 tokens, the model takes 23; shorten it"),
        (["a", "☃"], "prefix 2: holds what no translation does, a character that the vocabulary"),
        (["a", [Tokenizer.END]], "prefix 2: holds what no translation does"),
    ],
)
def test_prefixes_that_cannot_be_are_refused(translator, prefixes, message):
    with pytest.raises(TransductError) as caught:
        translator.translate(["a", "b"], prefixes=prefixes)
    assert message in str(caught.value)


def test_prefixes_do_not_go_with_a_constraint_but_with_captured_search(translator):
    with refusal("prefixes do not go with a constraint; leave one of them out"):
        translator.translate(["a"], prefixes=["b"], constraint="tree")
    for options in ({"prefixes": ["b", ""]}, {"no_repeat": 2}):
        found, expected = (
            translator.translate(["a", "b a"], captured=asked, **options) for asked in (True, False)
        )
        assert [each.tokens for each in found] == [each.tokens for each in expected]


# texts longer than the model


def test_a_long_text_is_translated_as_its_pieces_with_a_warning(translator, caplog):
    words = list("abcdefgh" * 4)
    [whole] = translator.translate([" ".join(words)])
    said = "a text of 32 tokens is longer than the model takes (23), translated in 2 pieces"
    assert said in caplog.text
    parts = translator.translate([" ".join(words[:23]), " ".join(words[23:])])
    assert whole.text == " ".join(part.text for part in parts).strip()  # one of which may be empty
    assert whole.tokens == [token for part in parts for token in part.tokens]
    assert whole.score == pytest.approx(sum(part.score for part in parts))
    assert len(translator.translate([" ".join(words)], n_best=3)[0].alternatives) == 3


def test_the_sentences_of_a_text_are_translated_one_by_one_where_that_is_asked_for(
    translator, caplog
):
    long = "B " + " ".join("abcdefgh" * 4) + " ab"
    texts = ["a ab. B ab. A", f"ab. {long}. B", "", "c"]
    found = translator.translate(texts, sentences=True)
    assert not caplog.text
    sentences = [["a ab.", "B ab.", "A"], ["ab.", f"{long}.", "B"], [""], ["c"]]
    for text, parts in zip(texts, sentences, strict=True):
        alone = translator.translate(parts)
        [whole] = translator.translate([text], sentences=True)
        assert whole.tokens == [token for part in alone for token in part.tokens]
        assert whole.score == pytest.approx(sum(part.score for part in alone))
        assert whole.tokens == found.pop(0).tokens
    assert translator.translate(["ab. B"], sentences=True, prefixes=["b"])[0].text.startswith("b")


def test_a_tree_is_of_a_whole_text():
    tree = make()
    whole = tree.translate(["a. B"], constraint="tree")
    assert tree.translate(["a. B"], constraint="tree", sentences=True) == whole


@pytest.mark.parametrize("expansion, most", [(0.0, 26), (2.0, 26), (0.1, 20), (3.5, 30)])
def test_an_output_may_be_as_long_as_the_model_allows(expansion, most):
    translator = make(max_length=30)
    translator.decoding = replace(translator.decoding, expansion=expansion)
    plan = translator.plan(["a b"])
    assert [one.limit for one in translator.sentences(plan.pieces, plan.decoding)] == [most]


# attention


def test_attention_has_every_layer_every_head_and_rows_that_sum_to_one(translator):
    found = translator.attention("a b c", "d e")
    assert (len(found.source), len(found.target)) == (4, 3)
    assert (found.source[-1], found.target[0]) == ("</s>", "<s>")
    shapes = {f"encoder.{i}.self": (4, 4, 4) for i in range(2)}
    shapes |= {f"decoder.{i}.self": (4, 3, 3) for i in range(2)}
    shapes |= {f"decoder.{i}.cross": (4, 3, 4) for i in range(2)}
    assert {name: tuple(weights.shape) for name, weights in found.items()} == shapes
    for name, weights in found.weights.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        assert tuple(map(len, found.labels(name))) == tuple(weights.shape[1:])
        assert found[name] is weights
    assert [*found] == [*found.weights] == translator.model.attention_names
    assert len(found) == len(found.weights)
    for i in range(2):
        assert not found[f"decoder.{i}.self"].triu(1).any(), "the future is seen"


def test_attention_is_what_the_model_uses(translator):
    """What the last layer's heads hand on, when nobody watches, is the memory's values weighted by
    what is shown."""
    model, cross, used = translator.model, translator.model.decoder[-1].cross_attention, []
    weights = translator.attention("a b c", "d e")["decoder.1.cross"]  # (H, T, S)
    [source], [target] = (translator.source_tokenizer.encode([text]) for text in ("a b c", "d e"))
    source_tokens, source_segments = flat([[*source, Tokenizer.END]], weights.device)
    target_tokens, target_segments = flat([[Tokenizer.BEGIN, *target]], weights.device)
    handle = cross.output.register_forward_pre_hook(lambda module, inputs: used.append(inputs[0]))
    with torch.no_grad():
        memory = model.encode(source_tokens, source_segments)
        model.decode(target_tokens, target_segments, memory, source_segments)
        values = cross.value(memory).unflatten(-1, (cross.num_heads, -1))  # (S, H, V)
    handle.remove()
    torch.testing.assert_close(torch.einsum("hts,shv->thv", weights, values).flatten(1), used[0])


def test_attention_of_the_models_own_translation(translator):
    own = translator.attention("a b c")
    tokens = translator.translate(["a b c"])[0].tokens
    assert own.target == translator.target_tokenizer.pieces([Tokenizer.BEGIN, *tokens])
    asked = {"temperature": 2.0, "seed": 3, "beam": 1}
    other = translator.translate(["a b c"], **asked)[0].tokens
    assert tokens != other
    for given in (asked, {"target": other}):
        found = translator.attention("a b c", **given)
        assert found.target == translator.target_tokenizer.pieces([Tokenizer.BEGIN, *other])
    with refusal(r"target 1: found \[-1\], expected a text, or ids from 0 to"):
        translator.attention("a", [-1])
    with refusal(r"found an output and options of a search for it \(beam\); leave one out"):
        translator.attention("a", "b", beam=3)
    with refusal("attention takes at most 23 tokens a side; shorten the text"):
        translator.attention("a " * 30)


def test_alignment_is_the_mean_of_the_last_cross_attention_without_ends():
    last = torch.rand(2, 3, 4)
    weights = {"decoder.9.cross": last * 0, "decoder.10.cross": last}
    found = Attention(weights, ["▁a", "▁b", "▁c", "</s>"], ["<s>", "▁d", "▁e"])
    rows, columns, weights = found.alignment()
    assert (rows, columns) == (["▁d", "▁e"], ["▁a", "▁b", "▁c"])
    torch.testing.assert_close(weights, last.mean(0)[:2, :3])
    with refusal("there is no cross-attention to align by: this model is an encoder alone"):
        Attention({"encoder.0.self": last}, ["▁a", "</s>"]).alignment()


# the rest


def test_replacements_are_made_in_sources():
    rules = [Replacement("source", "x", "a"), Replacement("target", "a", "b")]
    plain, changed = make(), make(changes=rules)
    assert changed.translate(["x b"]) == plain.translate(["a b"])
    assert changed.score(["x b"], ["a c"]) == plain.score(["a b"], ["a c"])


@pytest.mark.parametrize("odd", ["b", None, [None], [], 5, ["b", b"c"]])
def test_references_that_are_no_lists_of_texts_are_refused_before_anything_is_translated(
    translator, monkeypatch, odd
):
    monkeypatch.setattr(translator, "translate", None)
    with pytest.raises(TransductError) as caught:
        translator.evaluate((["a", "c"], [["b"], odd]))
    found = f"references: found {odd!r} where a list of texts is expected; give the texts that "
    assert str(caught.value) == found + "each may be"


def test_what_bleu_lacks_is_said_before_all_is_translated(monkeypatch):
    translator = make()
    translator.bleu_tokenize = "klingon"
    monkeypatch.setattr(translator, "translate", None)
    with refusal("BLEU has no tokenizer 'klingon'"):
        translator.evaluate((["a"], [["b"]]))


def test_evaluate_scores_what_translate_says(translator):
    own = translator.predict(TEXTS)
    assert own == [translation.text for translation in translator.translate(TEXTS)]
    perfect = translator.evaluate((TEXTS, [[text] for text in own]))
    assert perfect.outputs == own
    assert perfect.scores["exact_match"] == 100.0
    assert perfect.scores["chrf"] == pytest.approx(100.0)
    assert perfect.details["sentences"] == len(TEXTS)
    assert perfect.details["chrf"]["interval"] == pytest.approx([100.0, 100.0])
    several = translator.evaluate((TEXTS, [["zz", text] for text in own]))
    assert several.scores["exact_match"] == 100.0


def test_evaluate_against_another_model_says_whether_the_difference_is_chance(translator):
    other = make(seed=3)
    references = [[text] for text in translator.predict(TEXTS)]
    report = translator.evaluate((TEXTS, references), other, beam=4)
    assert report.details["against"] == other.evaluate((TEXTS, references)).scores
    assert report.details["against"]["chrf"] < 100.0
    assert report.details["p_values"]["chrf"] < 0.01
    same = translator.evaluate((TEXTS, references), translator)
    assert {*same.details["p_values"].values()} == {1.0}


def test_another_model_is_measured_as_this_one_is():
    """With the options of the call, and with words cut as this model says: whole, none of these
    would be right."""
    ours, other, asked = make(), make(), []
    ours.metrics, ours.bleu_tokenize = ["bleu"], "char"
    for model, text in ((ours, "abcdefgx"), (other, "abcdexyz")):

        def translate(sources, text=text, **options):
            asked.append(options)
            return [Translation(text, 0.0, [])] * len(sources)

        model.translate = translate
    report = ours.evaluate((TEXTS, [["abcdefgh"]] * len(TEXTS)), other, beam=3)
    assert asked == [{"beam": 3}] * 2
    assert 0.0 < report.details["against"]["bleu"] < report.scores["bleu"]
    assert report.details["p_values"]["bleu"] < 0.05


def test_translating_loads_few_modules_and_nothing_that_takes_its_time(trained_run):
    """A subprocess, for this one has imported everything."""
    script = """
import sys
from dataclasses import replace
import torch
before = set(sys.modules)
import transduct
model = transduct.load(sys.argv[1])
model.translate(["a b"])
print(sum(name.startswith("transduct.") and "." in name[10:] for name in sys.modules))
slow = {"torch._dynamo", "torch.distributed.tensor", "sympy", "sacrebleu", "pyarrow.parquet"}
slow |= {"transformers"}  # and what serves a GPU alone
slow |= {f"transduct.inference.{name}" for name in ("captured", "device_beam", "fixed_state")}
print(*sorted(slow & sys.modules.keys() - before))
"""
    command = [sys.executable, "-c", script, trained_run]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, *slow = done.stdout.split()
    assert slow == []
    assert int(modules) <= 60 - 6  # beside the six files that lie in no package


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@compiled
def test_a_base_model_of_8_bits_takes_little_memory(tmp_path):
    """A subprocess, for this one has held much."""
    untrained(tmp_path / "float32", "base", 32_000)
    int8.convert(tmp_path / "float32", tmp_path / "int8")
    script = """
import random, re, sys
from pathlib import Path
import torch

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = peak()
import transduct

model = transduct.load(sys.argv[1])
for count in (1, 128):
    texts = [" ".join(f"w{random.randrange(31_000)}" for _ in range(15)) for _ in range(count)]
    model.translate(texts, beam=1)
    print(peak() - before)
"""
    command = [sys.executable, "-c", script, tmp_path / "int8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    one, many = map(float, done.stdout.split())
    assert one <= 250
    assert many <= 700


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_its_sizes_and_the_fields_that_other_sections_decide(name):
    family = FAMILIES[name]
    assert {"tiny", "small", "base"} <= family.sizes.keys()
    config = family.config(**dict.fromkeys(DERIVED, 9), **family.sizes["tiny"])
    model = family.build(config)
    assert model.config == config
    for method in ("encode", "start", "step", "decode", "logits"):
        assert callable(getattr(model, method))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"family": "cnn"}, "unknown family 'cnn'; known are: transformer, rnn"),
        ({"family": ["rnn"]}, "unknown family '['rnn']'; known are: transformer, rnn"),
        ({"quantised": "int4"}, "quantised to 'int4' and asked for float32; ask for float32"),
        ({"backwards": "yes"}, "backwards is 'yes', expected true or false"),
        ({"replace": None}, "replace is None, expected a list of replacements"),
        ({"metrics": "bleu"}, "metrics is 'bleu' and bleu_tokenize 'auto', expected names of"),
        ({"forbidden": [True]}, "forbidden is [True], expected token ids; copy the model again"),
    ],
)
def test_settings_that_no_model_has_are_refused(trained_run, tmp_path, wrong, said):
    copy = with_settings(trained_run / "model", tmp_path / "m", **wrong)
    with refusal(re.escape(f"m/config.json: {said}")):
        transduct.load(copy)


def test_a_model_that_names_no_direction_writes_forwards(trained_run, tmp_path):
    """It was made before there was a choice."""
    copy = shutil.copytree(trained_run / "model", tmp_path / "m")
    config = json.loads((copy / "config.json").read_text())
    del config["backwards"]
    (copy / "config.json").write_text(json.dumps(config))
    assert transduct.load(copy).translate(["a b"]) == transduct.load(trained_run).translate(["a b"])


def test_a_shortlist_of_other_vocabularies_or_of_something_else_is_refused(tmp_path):
    untrained(tmp_path / "model", "tiny", 50)
    text, path = tmp_path / "text", tmp_path / "model" / SHORTLIST
    text.write_text("w1 w2 w3")
    held = load_tensors(transduct.load(tmp_path / "model").shortlist_of(text)[SHORTLIST])
    save_file(held, path)
    assert transduct.load(tmp_path / "model").translate(["w1 w2"], shortlist=True)[0].score < 0
    for odd in (
        held | {"more": held["common"].clone()},
        {"tokens": held["tokens"]},
        held | {"common": torch.tensor([50])},
        held | {"common": held["common"][held["common"] != Tokenizer.END].contiguous()},
    ):
        save_file(odd, path)
        with refusal(re.escape(f"{path}: is not a shortlist of this model; make one")):
            transduct.load(tmp_path / "model")
