"""A search that takes several steps in one call of the kernels finds what the loop finds."""

import pytest
import torch

from tests.changes import Cooled, becomes
from tests.helpers import BEGIN, END, compiled, tokens_of
from tests.inference.test_fused import KINDS, SOURCES, assert_same_outputs, both, found_by
from transduct.blocks.embeddings import narrowed
from transduct.decoding.filters import Filter, FixedLength, Forbid
from transduct.decoding.search import search
from transduct.decoding.shortlist import Narrowed
from transduct.inference import engine
from transduct.inference.cpu_beam import CPUBeam
from transduct.inference.fused import FusedDecoder
from transduct.inference.settings import DecodingConfig
from transduct.kernels import cpu_search

LIMITS = [7, 40, 12, 1, 30]  # one needs a second room


def capped(monkeypatch, most):
    """Limits the steps of a call; returns a list that collects how many each call took."""
    inner, taken = cpu_search.Steps.ahead, []

    def ahead(self, run, slots):
        found = inner(self, run._replace(most=min(run.most, most)), slots)
        taken.append(1 + found.history.shape[1] - run.history.shape[1])
        return found

    monkeypatch.setattr(cpu_search.Steps, "ahead", ahead)
    return taken


def searched(model, beam, kind):
    """What is found for all sources, with outputs as they come, without some tokens, of few tokens,
    or of so many tokens each."""
    forbidden = (3, 5, 6) if kind == "forbidden" else ()
    limits, constrain = LIMITS, None
    if kind == "fixed":
        limits, constrain = (
            [38] * len(SOURCES),
            lambda numbers: FixedLength(END, [38] * len(numbers) * beam),
        )

    def narrow(sources):
        tokens = torch.tensor([0, BEGIN, END, 4, 5, 7, 8, 10])
        allowed = torch.ones(len(sources), len(tokens)).bool()
        for row, source in zip(allowed, sources, strict=True):
            row[3 + len(source) % 5] = False
        return Narrowed(narrowed(model, tokens), tokens, allowed)

    few = narrow if kind == "shortlist" else None
    return engine.generate(
        model, SOURCES, limits, DecodingConfig(beam=beam), BEGIN, END, forbidden, constrain, few
    )


@compiled
@KINDS
@pytest.mark.parametrize(
    "shape", [{}, {"num_kv_heads": 2, "positions": "rotary"}], ids=["plain", "rotary"]
)
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["free", "forbidden", "shortlist", "fixed"])
def test_a_search_that_takes_several_steps_at_once_finds_the_same_to_the_bit(
    monkeypatch, integers, shape, beam, kind
):
    _, used = both(integers, **shape)
    # as if for a reason such as a limit that no running batch takes
    monkeypatch.setattr(engine, "runs", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.delattr(CPUBeam, "advance")
        expected = searched(used, beam, kind)
    # the most steps, and of five sources all, one, and two
    for most, together in ((1, 64), (2, 1), (100, 2 * beam)):
        with monkeypatch.context() as patch:
            patch.setattr(cpu_search, "TOGETHER", together)
            taken = capped(patch, most)
            assert searched(used, beam, kind) == expected
        if kind == "fixed":
            # until the first room is full
            assert taken == {1: [1] * 37, 2: [2] * 18 + [1], 100: [32, 5]}[most]
        else:
            assert len(taken) > 2
            assert max(taken) > 1 or most == 1


@compiled
@torch.inference_mode()
def test_the_kernels_take_no_steps_at_once_that_somebody_else_decides_on(monkeypatch):
    _, used = both(False)
    taken = capped(monkeypatch, 100)

    class Watching(Filter):
        """It could depend on anything."""

        def __call__(self, logits, history):
            return logits

    class Later(Forbid):
        """It could too, and says so."""

        until = 0

    source, segments = tokens_of([3, 1])
    memory = used.encode(source, segments)
    for filters in ([Watching()], [Forbid([3]), Watching()], [Later([3])]):
        search(used, memory, segments, CPUBeam(1, [9, 9], BEGIN, END, 1.0, "cpu"), filters)
    beam = CPUBeam(cpu_search.WIDEST_BEAM + 1, [3, 3], BEGIN, END, 1.0, "cpu")
    search(used, memory, segments, beam)
    assert not taken
    search(used, memory, segments, CPUBeam(1, [9, 9], BEGIN, END, 1.0, "cpu"), [Forbid([3])])
    assert taken, "the control"


def cooled(model):
    model.step = lambda tokens, state, own=model.step: (0.1 * own(tokens, state)[0], state)


@compiled
@pytest.mark.parametrize(
    "change", [becomes(Cooled), cooled], ids=["of a subclass", "of this model"]
)
def test_the_kernels_take_no_steps_at_once_if_a_step_is_more_than_the_decoders(monkeypatch, change):
    plain, used = both(False)
    unchanged, taken = found_by(used, 3), capped(monkeypatch, 100)
    for model in (plain, used):
        change(model)
    found = found_by(used, 3)
    assert_same_outputs(found, found_by(plain, 3))
    assert found != unchanged, "the control: it is a change"
    assert isinstance(used.decoder, FusedDecoder)
    assert not taken
