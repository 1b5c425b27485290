"""BERT equals Hugging Face's with its weights, keeps sequences separate, and can initialise a
Transformer's encoder."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import SIZE, TINY, randomise, tokens_of
from tests.helpers import tiny as tiny_transformer
from transduct import storage
from transduct.models.bert import Bert, Config
from transduct.segments import Segments, flatten, pad
from transduct.tasks.model import start_from
from transduct.tasks.translation import as_source_side

# tokens of each sequence, and how many of the last are of type 1
LENGTHS, SECOND = ([7, 3, 5], [2, 1, 3])
TYPES = torch.cat([torch.arange(n) >= n - k for n, k in zip(LENGTHS, SECOND)]).long()
HEADS = ["masked", "pretraining", "sequence", "tokens", "span"]


def tiny(seed=1, **changes):
    """Two layers of width 16, ready to be used; token SIZE is the mask."""
    torch.manual_seed(seed)
    shape = {**TINY, "layers": 2, "dropout": 0.0, "max_length": 12, "labels": 3}
    return randomise(Bert(Config(**{"vocabulary_size": SIZE, **shape, **changes})).eval(), seed)


def scores(model, tokens, types, segments):
    """The outputs of the model's head for a batch."""
    x = model.encode(tokens, types, segments)
    match model.config.head:
        case "masked":
            return [model.masked_logits(x)]
        case "pretraining":
            return [model.masked_logits(x), model.follows(x, segments)]
        case "sequence":
            return [model.classify(x, segments)]
        case "tokens":
            return [model.tag(x)]
        case "span":
            return [model.span(x)]
    return [x]


# Hugging Face's names of a part, and ours.
LAYER = {
    "attention.self.query": "self_attention.query",
    "attention.self.key": "self_attention.key",
    "attention.self.value": "self_attention.value",
    "attention.output.dense": "self_attention.output",
    "attention.output.LayerNorm": "around_attention.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.outer",
    "output.LayerNorm": "around_feed_forward.norm",
}
PARTS = {
    "bert.embeddings.word_embeddings.weight": "embedding.table",
    "bert.embeddings.position_embeddings.weight": "embedding.positions.table",
    "bert.embeddings.token_type_embeddings.weight": "types",
    "bert.embeddings.LayerNorm": "embedding_norm",
    "bert.pooler.dense": "pooler",
    "cls.predictions.transform.dense": "transform",
    "cls.predictions.transform.LayerNorm": "transform_norm",
    "cls.predictions.bias": "bias",
    "cls.seq_relationship": "next_sentence",
    "classifier": "output",
    "qa_outputs": "output",
}
# The tokens' vectors are multiplied by sqrt(D) here, so the table is divided by it, and the logits
# made good again.
SCALES = {
    "embedding.table": 16**-0.5,
    "transform_norm.weight": 16**0.5,
    "transform_norm.bias": 16**0.5,
}


def our_name(name):
    """The parameter of ours that holds what theirs of this name holds."""
    if name in PARTS:
        return PARTS[name]
    part, _, kind = name.rpartition(".")
    if part in PARTS:
        return f"{PARTS[part]}.{kind}"
    number, _, part = part.removeprefix("bert.encoder.layer.").partition(".")
    return f"encoder.{number}.{LAYER[part]}.{kind}"


@pytest.mark.parametrize(
    ("theirs", "head", "labels"),
    [
        ("BertForMaskedLM", "masked", 0),
        ("BertForPreTraining", "pretraining", 0),
        ("BertForSequenceClassification", "sequence", 3),
        ("BertForTokenClassification", "tokens", 3),
        ("BertForQuestionAnswering", "span", 2),
    ],
)
def test_logits_and_gradients_are_those_of_hugging_face(theirs, head, labels):
    transformers = pytest.importorskip("transformers", reason="parity with BERT needs transformers")
    config = transformers.BertConfig(
        vocab_size=SIZE + 1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        num_labels=labels,
        pad_token_id=None,  # whose vector would learn nothing
        attn_implementation="eager",
    )
    other = randomise(getattr(transformers, theirs)(config).eval(), 3)
    ours = tiny(norm="post", positions="learned", embedding_norm=True, head=head, labels=labels)
    mine, parameters = dict(ours.named_parameters()), dict(other.named_parameters())
    names = {our_name(name): name for name in parameters}
    assert names.keys() == mine.keys()
    with torch.no_grad():
        for name, their_name in names.items():
            mine[name].copy_(parameters[their_name] * SCALES.get(name, 1.0))

    tokens, segments = tokens_of(LENGTHS, size=SIZE + 1)
    padded = {"input_ids": pad(tokens, segments), "token_type_ids": pad(TYPES, segments)}
    outputs = other(**padded, attention_mask=segments.mask.long()).to_tuple()
    expected = [flatten(x, segments) if x.shape[1] == segments.longest else x for x in outputs]
    if head == "span":
        expected = [torch.stack(expected, -1)]
    found = scores(ours, tokens, TYPES, segments)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)

    found_loss, expected_loss = (
        sum(F.cross_entropy(part, torch.arange(len(part)) % part.shape[1]) for part in parts)
        for parts in (found, expected)
    )
    found_loss.backward()
    expected_loss.backward()
    for name, their_name in names.items():
        gradient = mine[name].grad * SCALES.get(name, 1.0)
        torch.testing.assert_close(gradient, parameters[their_name].grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", [*HEADS, "none"])
@pytest.mark.parametrize(
    "positions", ["none", "learned", "sinusoidal", "rotary", "alibi", "relative"]
)
@torch.no_grad()
def test_a_sequence_is_given_the_same_scores_alone_and_in_a_batch(head, positions):
    model = tiny(head=head, positions=positions)
    tokens, segments = tokens_of(LENGTHS)
    together = scores(model, tokens, TYPES, segments)
    rows = [tokens.split(LENGTHS), TYPES.split(LENGTHS)]
    alone = [scores(model, *row, Segments.of([n])) for *row, n in zip(*rows, LENGTHS)]
    for part, parts in zip(together, zip(*alone), strict=True):
        torch.testing.assert_close(torch.cat(parts), part, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3]])
def test_the_mean_of_a_sequence_stands_for_it(lengths):
    model, plain = tiny(head="sequence", labels=2, pool="mean"), tiny(head="sequence", labels=2)
    x, segments = torch.randn(sum(lengths), 16), Segments.of(lengths)
    means = torch.stack([part.mean(0) for part in x.split(lengths)])
    torch.testing.assert_close(model.pool(x, segments), model.pooler(means).tanh())
    assert (model.classify(x, segments) != plain.classify(x, segments)).any()


@torch.no_grad()
def test_a_token_sees_all_of_its_own_sequence():
    model = tiny()
    tokens, segments = tokens_of(LENGTHS)
    other = tokens.clone()
    other[8] = (other[8] + 1) % SIZE  # the middle of the second sequence
    difference = (
        (model.encode(tokens, TYPES, segments) - model.encode(other, TYPES, segments))
        .abs()
        .amax(-1)
    )
    assert difference[7:10].min() > 1e-3
    assert difference[[*range(7), *range(10, 15)]].max() < 1e-5


@torch.no_grad()
def test_types_positions_and_the_mask_tell_tokens_apart():
    model = tiny()
    segments = Segments.of([2, 2, 2])
    vectors = model.encode(
        torch.tensor([5, 5, 5, 5, 5, SIZE]), torch.tensor([0, 0, 0, 1, 0, 0]), segments
    )
    assert torch.pdist(vectors).min() > 1e-3


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary", "relative"])
@torch.no_grad()
def test_a_transformer_takes_it_as_its_encoder(positions, tie, tmp_path):
    bert = tiny(seed=1, positions=positions, head="pretraining")
    storage.write_directory(
        tmp_path / "bert", {storage.WEIGHTS: storage.pack(storage.weights_of(bert))}
    )
    model = tiny_transformer(
        seed=2, positions=positions, activation="gelu", tie=tie, d_k=None, max_length=12
    )
    start_from(model, tmp_path / "bert", str, as_source_side)
    tokens, segments = tokens_of(LENGTHS)
    expected = bert.encode(tokens, torch.zeros_like(tokens), segments)
    torch.testing.assert_close(model.encode(tokens, segments), expected, atol=1e-5, rtol=1e-5)


def test_heads_share_the_names_of_what_they_share():
    names = {
        head: {name.split(".")[0] for name, _ in tiny(head=head).named_parameters()}
        for head in [*HEADS, "none"]
    }
    assert {head: found - names["none"] for head, found in names.items()} == {
        "none": set(),
        "masked": {"transform", "transform_norm", "bias"},
        "pretraining": {"transform", "transform_norm", "bias", "pooler", "next_sentence"},
        "sequence": {"pooler", "output"},
        "tokens": {"output"},
        "span": {"output"},
    }


def test_asking_for_weights_changes_nothing_and_gives_one_a_layer():
    model = tiny(positions="relative")
    tokens, segments = tokens_of(LENGTHS)
    weights = []
    torch.testing.assert_close(
        model.encode(tokens, TYPES, segments, weights), model.encode(tokens, TYPES, segments)
    )
    assert [tuple(w.shape) for w in weights] == [(3, 4, 7, 7)] * len(model.attention_names)
    assert model.attention_names == ["encoder.0.self", "encoder.1.self"]
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))


@pytest.mark.parametrize("head", ["none", "sequence", "tokens"])
@torch.no_grad()
def test_dropout_acts_in_training_alone_and_under_a_seed(head):
    model = tiny(head=head, dropout=0.4)

    def drawn(seed):
        torch.manual_seed(seed)
        return scores(model, tokens_of(LENGTHS)[0], TYPES, Segments.of(LENGTHS))[0]

    assert torch.equal(drawn(1), drawn(2))
    model.train()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@torch.no_grad()
def test_the_heads_for_labels_drop_what_they_read():
    x, segments = torch.ones(3, 16), Segments.of([1, 2])
    for head, read in (
        ("sequence", lambda model: model.classify(x, segments)),
        ("tokens", lambda model: model.tag(x)),
    ):
        model = tiny(head=head, dropout=0.4)
        assert not torch.equal(read(model.train()), read(model.eval()))


@torch.no_grad()
def test_embeddings_are_dropped(monkeypatch):
    model, given = tiny(dropout=0.4), (tokens_of(LENGTHS)[0], TYPES, Segments.of(LENGTHS))
    monkeypatch.setattr(type(model.encoder), "forward", lambda _, x, *__: x)
    assert not torch.equal(model.train().encode(*given), model.eval().encode(*given))
