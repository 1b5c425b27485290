"""A loss that stays far above its best is a divergence; a burst, or its usual range, is none."""

from dataclasses import replace

import pytest

from transduct.training.state import FAR, WATCHED, State
from transduct.training.step import Diverged


def test_a_loss_far_above_its_best_for_the_stated_steps_is_a_divergence():
    high = 3.0 * FAR + 1.5
    state = replace(State(lowest=3.0), step=100)
    for step in range(101, 100 + WATCHED):
        state = replace(state, step=step).after(high, step)
    with pytest.raises(Diverged, match=r"step 150: loss 7\.5 for 50 steps, it was 3") as found:
        replace(state, step=150).after(high, 150)
    assert found.value.since == 50
    assert replace(state, step=150, losses=[3.0] * 49).after(high, 150).lowest == 3.0


def test_a_burst_shorter_than_the_watch_is_left_alone():
    state = State(lowest=3.0)
    for step in range(1, 201):
        state = replace(state, step=step).after(9e9 if step % 50 < 20 else 3.0, step)
    assert (state.lowest, state.losses) == (3.0, [])


def test_a_loss_within_its_usual_range_never_diverges():
    state = State()
    for step in range(1, 501):
        state = replace(state, step=step).after(0.5 + 0.9 * (step % 2), step)
    assert state.lowest == pytest.approx(0.5, abs=1)
