"""The benchmark of growth: its laws go through what they should, and in miniature it measures all
it says."""

import json
import math
import subprocess
import sys
from pathlib import Path

import growth_points
import pytest
from growth import DEFAULT, FULL, MINIATURE, Law, Row, axes, law_through, log_ticks, short, tables

from transduct.data.batching import SORTED

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growth.py"
XS = [1, 2, 4, 8, 16, 32]


def row(ys, shape="a + c x", **changes):
    """A row of seconds against `XS`."""
    law = law_through(shape, XS, ys, 1e-3)
    return Row(
        **{
            "what": "training",
            "grows": "length",
            "quantity": "seconds",
            "each": "token",
            "xs": XS,
            "ys": ys,
        }
        | {"counts": [1000] * len(ys), "law": law}
        | changes
    )


@pytest.mark.parametrize(
    "shape, grown",
    [
        ("a", lambda x: 5.0),
        ("a + c x", lambda x: 3.0 + 2.0 * x),
        ("a + c x²", lambda x: 0.5 * x * x),
        ("a + c x log x", lambda x: 1.0 + x * math.log2(max(2, x))),
    ],
)
def test_what_follows_its_law_is_met_everywhere(shape, grown):
    found = row([grown(x) for x in XS], shape)
    assert found.over == pytest.approx([1.0] * len(XS))
    assert not found.faster


def test_growth_above_the_law_is_reported():
    square = row([0.1 * x * x for x in XS])
    assert square.law.fixed == 0.0
    # the law goes through the first that is twice as high
    assert square.over == pytest.approx([0.5, 1, 2, 4, 8, 16])
    assert square.exponent == pytest.approx(2.0)
    assert square.faster
    assert row([1.0, 1.0, 1.0, 1.0, 1.0, 2.0], "a").faster
    assert not row([4.0, 3.0, 2.0, 1.0, 1.0, 1.0]).faster


def test_noise_does_not_found_a_law():
    found = row([1e-5, 9e-4, 2e-3, 4e-3, 8e-3, 1.6e-2])
    assert found.law(4) == pytest.approx(2e-3)
    assert found.law(32) == pytest.approx(1.6e-2)
    assert not row([1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 9e-4], "a").faster


@pytest.mark.parametrize("length", [16, 128, 4096])
def test_no_law_doubles_faster_than_its_shape(length):
    for fixed in (0.0, 1.0):
        assert Law("a", fixed, 1.0)(2 * length) == Law("a", fixed, 1.0)(length)
        assert Law("a + c x", fixed, 1.0)(2 * length) <= 2 * Law("a + c x", fixed, 1.0)(length)
        assert Law("a + c x log x", fixed, 1.0)(2 * length) < 3 * Law("a + c x log x", fixed, 1.0)(
            length
        )
        assert Law("a + c x²", fixed, 1.0)(2 * length) <= 4 * Law("a + c x²", fixed, 1.0)(length)
    sorting = Law("a + c x log x", 0.0, 1.0)
    assert sorting(4 * SORTED) == 4 * sorting(SORTED)


def test_all_lengths_hold_the_same_tokens():
    [lengths, *_] = axes("training", DEFAULT)
    assert {work.sentences * work.length for work in lengths.points.values()} == {8192}
    assert list(lengths.points) == [work.length for work in lengths.points.values()]


def test_full_goes_further():
    assert [max(axis.points) for axis in (*axes("preparation", FULL), *axes("plan", FULL))] == [
        10**7,
        10**8,
    ]
    assert [
        max(axis.points) for axis in (*axes("preparation", DEFAULT), *axes("plan", DEFAULT))
    ] == [10**6, 10**7]


@pytest.mark.parametrize(
    "low, high", [(1.0, 1.0), (0.3, 7.0), (1e-4, 3e6), (10.0, 1000.0), (0.99, 1.01)]
)
def test_ticks_enclose_what_is_drawn(low, high):
    ticks = log_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-9)
    assert ticks[-1] >= high * (1 - 1e-9)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 12


def test_an_axis_has_room_for_its_numbers():
    assert [*map(short, (0.0002, 1000, 250_000, 1_000_000, 100_000_000))] == [
        "0.0002",
        "1,000",
        "250,000",
        "1M",
        "100M",
    ]


def test_a_table_tells_the_cost_of_each_and_how_it_follows_its_law():
    said = tables([row([0.1 * x * x for x in XS]), row([64.0] * len(XS), "a", quantity="MiB")])
    assert "training; over the last two points seconds as x^2.00 (faster), MiB as x^0.00." in said
    assert "| length | seconds | µs per token | times a + c x | MiB | times a |" in said
    assert "| 4 | 1.6 | 1,600 | 2.00 | 64 | 1.00 |" in said


@pytest.mark.slow
def test_in_miniature(tmp_path):
    # Training is measured by the code that measures decoding; each point is a process.
    kinds = ["decoding", "preparation", "plan"]
    call = [sys.executable, SCRIPT, "--miniature", "--out", tmp_path / "new" / "pictures"]
    call += ["--what", *kinds]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    models = ["length of a sentence", "tokens of a batch", "layers of each half", "vocabulary"]
    expected = [("decoding", grows) for grows in models]
    expected += [("preparation", "pairs"), ("plan", "examples")]
    assert list(dict.fromkeys((row["what"], row["grows"]) for row in rows)) == expected
    for found in rows:
        assert len(found["xs"]) == len(found["ys"]) == len(found["over"]) == 3
        assert all(y >= 0.0 for y in found["ys"])
    timed = [found for found in rows if found["quantity"] == "seconds"]
    assert all(y > 0.0 for found in timed for y in found["ys"])
    assert [found["counts"] for found in timed if found["grows"] == "tokens of a batch"] == [
        [128, 256, 512]
    ]
    assert [found["counts"] for found in timed if found["grows"] == "length of a sentence"] == [
        [128] * 3
    ]
    assert [found["xs"] for found in timed if found["what"] == "plan"] == [MINIATURE.examples]
    assert sum(found["quantity"] == "seconds to a batch" for found in rows) == 1
    if growth_points.REFERENCES.exists():
        memory = {(f["what"], f["grows"]): f["ys"] for f in rows if f["quantity"] == "MiB"}
        assert list(memory) == expected
        assert all(y > 0.0 for what, grows in expected[:8] for y in memory[what, grows])
    for what in kinds:
        assert (tmp_path / "new" / "pictures" / f"growth_{what}.svg").read_text().startswith("<svg")
        assert f"{what}; over the last two points" in done.stdout
