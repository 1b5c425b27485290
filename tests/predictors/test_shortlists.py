"""Words are aligned with where the model looks, whatever it is used with."""

import transduct
from tests.predictors.test_translation import make
from tests.refusals import refusal
from transduct.inference.ensemble import Ensemble
from transduct.inference.settings import DecodingConfig
from transduct.predictors.shortlists import align


def test_tokens_are_aligned_with_where_the_model_looks():
    translator = make()
    texts = ["a b", "", "c d e"]
    sources, targets = align(translator, texts)
    greedy = translator.translate(texts, beam=1)
    assert targets.tolist() == [token for found in greedy for token in found.tokens]
    place = 0
    for text, found in zip(texts, greedy, strict=True):
        if not text:
            continue
        rows = translator.attention(text, found.tokens)
        cross = sum(w.mean(0) for name, w in rows.weights.items() if name.endswith("cross"))
        ids = translator.source_tokenizer.encode([text])[0]
        looked_at = cross[:, : len(ids)].argmax(-1)[: len(found.tokens)]
        assert sources[place : place + len(found.tokens)].tolist() == [ids[i] for i in looked_at]
        place += len(found.tokens)
    assert place == len(targets) > 9


def test_a_shortlist_is_of_greedy_translations_whatever_the_model_is_used_with(tmp_path):
    translator, text = make(), tmp_path / "text"
    text.write_text("a b c\nd e a\n" * 5)
    expected = translator.shortlist_of(text)
    translator.decoding = DecodingConfig(temperature=2.0)
    assert translator.translate(["a b c"], seed=1) != translator.translate(["a b c"], seed=2), (
        "the control"
    )
    assert translator.shortlist_of(text) == expected


def test_without_attention_or_words_there_is_no_shortlist(trained_run, tmp_path):
    translator, text = transduct.load(trained_run), tmp_path / "text"
    text.write_text(" \n\n")
    with refusal(r"text: holds no words to align; give text like that"):
        translator.shortlist_of(text)
    translator.model = Ensemble([translator.model])
    with refusal("this model has no attention to align with: its"):
        align(translator, ["a"])
