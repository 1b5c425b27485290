"""Invalid training settings are rejected before training begins."""

import pytest

from transduct.training.config import TrainingConfig, fastest, sharded, unfinished_warmup


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"patience": 2},
            "patience is 2, counts validations without a better score; set best to that score",
        ),
        (
            {"patience": 2, "best": "loss", "validate_every": 0},
            "patience is 2, counts validations; set validate_every",
        ),
        (
            {"capture": True, "optimiser": "muon"},
            "capture is true, needs the optimiser adam; optimiser is muon",
        ),
        (
            {"capture": True, "shard": "all"},
            "capture is true, does not go with shard; set it to auto or false",
        ),
        ({"compile": True, "recompute": True}, "compile is true, does not go with recompute; set"),
        (
            {"shard": "node", "optimiser": "muon"},
            "shard is node, needs the optimiser adam; muon needs whole matrices",
        ),
        ({"betas": [0.9]}, "betas has 1 numbers, must have 2"),
        ({"average": 6}, r"average is 6, must be at most keep_checkpoints \(5\)"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**changes)


def chosen(device="cuda", weights=44_000_000, captures=True, compiles=True, **training):
    config = TrainingConfig(**{"precision": "bfloat16", "batch_tokens": 25_600, **training})
    config, said = fastest(config, device, weights, captures=captures, compiles=compiles)
    return config.compile, config.capture, said


def test_long_runs_are_compiled_and_captured_and_short_ones_captured():
    compiled, captured, said = chosen(steps=100_000)
    assert (compiled, captured) == (True, True)
    assert said == "training steps are compiled and captured: compiling saves some 811 s"
    compiled, captured, said = chosen(steps=5_000, weights=2_400_000, batch_tokens=4_096)
    assert (compiled, captured) == (False, True)
    assert said.startswith("training steps are captured and not compiled: the run is short (20 s)")
    assert chosen(steps=5_000, precision="float32")[:2] == (True, True), "a step takes longer"
    assert chosen(steps=5_000)[:2] == (False, True)
    assert chosen(steps=5_000, accumulate=4)[:2] == (True, True)


def test_what_cannot_be_is_not_chosen_and_what_is_set_stays():
    assert chosen(steps=100_000, compiles=False)[:2] == (False, True)
    assert chosen(captures=False, compiles=False)[:2] == (False, False)
    compiled, captured, said = chosen(optimiser="muon", compiles=False)
    assert (compiled, captured) == (False, False)
    assert said.startswith(
        "training steps are neither captured nor compiled: this task or optimiser cannot be "
        "captured, and the run is short ("
    )
    assert chosen("cpu", steps=100_000) == (False, False, "")
    assert chosen(steps=100_000, compile=False, capture=False) == (False, False, "")
    asked = chosen(steps=100_000, compile=False)
    assert asked == (False, True, "training steps are captured and not compiled")
    asked = chosen(steps=100_000, capture=False)
    assert asked[:2] == (True, False)
    assert asked[2].startswith("training steps are compiled and not captured: compiling saves")
    assert chosen("cpu", compile=True, capture=True) == (True, True, "")


@pytest.mark.parametrize(
    "steps, warmup, found",
    [
        (300, 400, "reaches 0.00075 of 0.001; set training.warmup to 30 or so"),
        (400, 400, "reaches 0.001 of 0.001; set training.warmup to 40 or so"),
        (401, 400, ""),
        (400, 0, ""),
    ],
)
def test_a_warm_up_as_long_as_the_training_is_warned_of(steps, warmup, found):
    warning = unfinished_warmup(TrainingConfig(steps=steps, warmup=warmup))
    begins = f"training.warmup is {warmup}, training.steps is {steps}: the learning rate rises"
    assert warning.endswith(found)
    assert warning == "" if not found else warning.startswith(begins)


@pytest.mark.parametrize(
    ("weights", "memory", "world", "local", "found"),
    [
        (4e9, 80e9, 8, 8, "all"),
        (4e9, 80e9, 16, 8, "node"),
        (4e10, 80e9, 16, 8, "all"),
        (4e9, 80e9, 1, 1, "none"),
        (1e8, 80e9, 8, 8, "none"),
        (4e9, 0, 8, 8, "none"),
    ],
)
def test_a_model_too_large_for_a_gpu_is_held_in_pieces(weights, memory, world, local, found):
    """Within a machine, if it is large enough; never on CPUs."""
    given = int(weights), int(memory), world, local
    assert sharded(TrainingConfig(), *given).shard == found
    assert sharded(TrainingConfig(shard="none"), *given).shard == "none"
    assert sharded(TrainingConfig(optimiser="muon"), *given).shard == "none"


def test_pieces_and_recomputed_layers_are_neither_captured_nor_compiled():
    for how in ({"shard": "all"}, {"recompute": True}):
        assert chosen(steps=100_000, **how)[:2] == (False, False)
