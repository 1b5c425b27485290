"""Small models learn by the package's step, the same for the same seed."""

import math
from itertools import repeat

import pytest
import torch
from transduct_course import small


def echo(random):
    row = [small.FIRST + random.randrange(3) for _ in range(2)]
    return row, row


def test_training_lowers_the_loss_and_repeats_exactly():
    def trained(seed):
        model = small.seeded(
            seed, lambda: small.transformer_of(3, d_model=16, num_heads=2, d_ff=16)
        )
        return small.train(model, small.batches(echo, 8, seed), 40, 1e-2, seed=seed)[1]

    losses = trained(1)
    assert losses == trained(1)
    assert losses != trained(2)
    assert losses[-1] < 0.5 * losses[0]


def test_a_seed_does_not_touch_other_draws():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    small.seeded(1, lambda: torch.rand(9))
    assert torch.equal(torch.rand(1), expected)


def test_diverging_training_ends_with_nan():
    model = small.seeded(1, lambda: small.transformer_of(3, d_model=16, num_heads=2, d_ff=16))
    with torch.no_grad():
        model.encoder[0].feed_forward.inner.weight.fill_(math.inf)
    _, losses = small.train(model, small.batches(echo, 4, 1), 5)
    assert len(losses) == 1
    assert math.isnan(losses[0])


def test_watching_sees_the_gradients_of_each_step():
    model = small.seeded(1, lambda: small.transformer_of(3, d_model=16, num_heads=2, d_ff=16))
    seen = []
    small.train(
        model,
        repeat(small.batch_of([([3], [4])])),
        3,
        clip=0.0,
        watch=lambda step, loss, model: seen.append(
            (step, *(small.gradient_norm(model, name) for name in ("encoder.0", "none")))
        ),
    )
    assert [step for step, *_ in seen] == [1, 2, 3]
    assert all(own > 0 and none == 0 for _, own, none in seen)


def test_entropy_is_in_bits():
    assert small.entropy(torch.tensor([[0.25] * 4])) == pytest.approx(2)
    assert small.entropy(torch.tensor([[1.0, 0.0]])) == pytest.approx(0)


def test_labels_that_are_missing_do_not_count():
    batch = small.labelled([([3, 4], [1, -1]), ([5], [0])])
    assert batch.counts == {"labels": 2.0}
    model = small.seeded(1, lambda: small.bert_of(3, 2, d_model=8, num_heads=2, d_ff=8))
    loss, count, _ = small.label_loss(model, batch)["labels"]
    assert count == 2
    assert 0 <= small.label_accuracy(model, batch) <= 1
    expected = torch.nn.functional.cross_entropy(
        small.label_logits(model, batch)[[0, 2]], torch.tensor([1, 0]), reduction="sum"
    )
    torch.testing.assert_close(loss, expected)


def test_training_ends_when_it_is_learnt_or_hopeless():
    def steps(watch):
        model = small.seeded(1, lambda: small.transformer_of(3, d_model=16, num_heads=2, d_ff=16))
        return len(small.train(model, small.batches(echo, 8, 1), 60, 1e-2, watch=watch)[1])

    assert steps(small.until(0.0)) == 60
    assert steps(small.until(9.0, steps=5)) == 5
    assert steps(small.until(0.0, (30, 0.01))) == 30
    assert steps(small.until(0.0, (30, 9.0))) == 60
