"""The `training` section of a recipe."""

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from transduct.training.optim import Schedule

LARGEST = 10**12  # of what is counted


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        steps: updates of the weights.
        batch_tokens: the most tokens of a batch on its fuller side; of pictures and sounds, what the model reads of
            them. A longer example is a batch of its own; what BPE dropout adds is planned for on average, so that a
            batch may be some percent over.
        accumulate: batches a rank whose gradients make one step.
        optimiser: adam, or muon, which moves the matrices within stacks by steps of one size in every direction and all
            else as adam does. A step costs more; pictures need far fewer of them, small translation models no fewer.
        learning_rate: the peak, reached after `warmup` steps.
        warmup: steps in which the rate rises linearly from 0.
        schedule: from the peak on: down with the inverse square root of the step, straight or along a cosine to 0 at
            the last step, or flat.
        label_smoothing: the share of each target's probability that is spread over all labels or tokens; boxes and
            image codes know no such targets.
        clip: the largest joint norm of the gradients; 0 does not clip.
        weight_decay: decoupled; on matrices alone.
        betas, epsilon: Adam's.
        precision: in which layers compute: float32, bfloat16 or auto, which is bfloat16 where the device multiplies it
            faster (the run's recipe then says which); weights and optimiser stay in float32.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of the first weights, of the order of the data and of all that is drawn.
        log_every: steps from one line of `log.jsonl` to the next.
        validate_every: steps from one validation to the next; 0 for one at the end alone.
        checkpoint_every: steps from one regular checkpoint to the next.
        keep_checkpoints: how many regular ones are kept, besides the best and those averaged with it.
        average: how many regular checkpoints, up to the chosen one, are averaged into the final model.
        ema: decay of a moving average of the weights, used for validation and the final model; 0 for none.
        best: the score of the validation that chooses the final checkpoint; the last one if not given.
        patience: validations without a better `best` before training stops; 0 never stops early.
        divergence_tries: how often training goes back to a good checkpoint, at half the rate, before it fails.
        compile: whether the loss is compiled, for batches that all have one shape: of a Transformer for translation.
        capture: whether a step is captured as CUDA graphs and replayed, which pays where a model is small; on a CPU the
            same step runs over the same tensors, uncaptured. Neither has been seen on a GPU yet, so both are off.
    """

    steps: int = 10_000
    batch_tokens: int = 4096
    accumulate: int = 1
    optimiser: Literal["adam", "muon"] = "adam"
    learning_rate: float = 1e-3
    warmup: int = 1000
    schedule: Schedule = "inverse_sqrt"
    label_smoothing: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: float = 1e-9
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    device: str = "auto"
    seed: int = 1
    log_every: int = 50
    validate_every: int = 1000
    checkpoint_every: int = 1000
    keep_checkpoints: int = 5
    average: int = 1
    ema: float = 0.0
    best: str | None = None
    patience: int = 0
    divergence_tries: int = 3
    compile: bool = False
    capture: bool = False

    def __post_init__(self) -> None:
        some = ("steps", "batch_tokens", "accumulate", "log_every", "checkpoint_every", "keep_checkpoints")
        perhaps_none = ("warmup", "validate_every", "patience", "divergence_tries")
        for name, least in {**dict.fromkeys(some, 1), **dict.fromkeys(perhaps_none, 0)}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")
            if getattr(self, name) > LARGEST:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at most {LARGEST}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing is {self.label_smoothing}, must be in [0, 1)")
        for name in ("learning_rate", "epsilon"):
            if not 0.0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        for name in ("clip", "weight_decay"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 0")
        if self.patience and self.best is None:
            raise ValueError(f"patience is {self.patience}, counts validations without a better score; name it as best")
        if self.patience and not self.validate_every:
            raise ValueError(f"patience is {self.patience}, counts validations; set validate_every above 0")
        if self.capture and self.optimiser != "adam":
            raise ValueError(f"capture is true, works with adam alone; optimiser is {self.optimiser}")
        if len(self.betas) != 2:
            raise ValueError(f"betas has {len(self.betas)} numbers, must have 2")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}, must be in [0, 1)")
        if not 1 <= self.average <= self.keep_checkpoints:
            raise ValueError(f"average is {self.average}, must be from 1 to keep_checkpoints ({self.keep_checkpoints})")
        if not 0.0 <= self.ema < 1.0:
            raise ValueError(f"ema is {self.ema}, must be in [0, 1)")
