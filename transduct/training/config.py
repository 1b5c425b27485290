"""The `training` section of a recipe."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

from transduct.records import Checked, NotNegative, Positive, Range, Rate, refuse_if
from transduct.training.optim import Schedule, rate

Config = TypeVar("Config", bound="TrainingConfig")
# numbers of steps, tokens or batches
Steps = Annotated[int, Range(1, 10**12)]
StepsOrNone = Annotated[int, Range(0, 10**12)]
# Of a captured step on one H200: arithmetic a second by precision, and the shortest it takes.
SPEEDS, SHORTEST = {"float32": 5e13}, 0.004
SPEED = 2e14  # in narrower precisions
SAVED, COMPILING = 0.24, 60.0  # the share of it that compiling saves, and the seconds it costs


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """How a model is trained.

    Attributes:
        steps: weight updates.
        batch_tokens: the most tokens in a batch, counted on its larger side (source or target). For
            pictures and sounds, the most positions the model reads. A longer example gets a batch
            of its own. BPE dropout is allowed for on average, so a batch may exceed the budget by a
            few percent.
        accumulate: micro-batches per rank whose gradients are summed into one step.
        batches_per_step: the batches of a step, which the ranks share out. By default `accumulate`
            for each rank of the start. The run's recipe keeps the number, so that a run that goes
            on with another number of ranks takes the same steps.
        shard: which ranks divide the weights among them: none, all, or those of a node (a machine),
            where each machine holds the whole model. Each rank then keeps and updates a piece of
            every weight, for models that one GPU cannot train. With auto that is so where weights,
            gradients and optimiser state take more than half of a GPU's memory, and the choice is
            recorded in the run's recipe.
        recompute: compute the layers of a Transformer again in the backward pass instead of keeping
            what is within them. It takes more time and less memory; how much was not measured.
        timeout: seconds in which a rank has to answer the others; preparing does not count.
        optimiser: adam, or muon, which orthogonalises the updates of the matrices in stacked layers
            and leaves all other weights to Adam. A Muon step costs more. Picture models need far
            fewer steps, small translation models no fewer.
        learning_rate: the peak learning rate, reached after `warmup` steps.
        warmup: steps over which the learning rate rises linearly from 0.
        schedule: the learning rate after the peak: inverse square root of the step, linear or
            cosine decay to 0 at the last step, or constant.
        label_smoothing: the probability mass of each target spread evenly over all labels or
            tokens; box and image-code losses do not use it.
        clip: the largest total gradient norm; 0 disables clipping.
        weight_decay: decoupled weight decay, applied to matrices only.
        betas: Adam's decay rates of the running averages.
        epsilon: Adam's epsilon.
        precision: the precision layers compute in. auto picks bfloat16 where the device multiplies
            it faster, and records the choice in the run's recipe. Weights and optimiser state stay
            float32. On a GPU that has fast float16 alone, auto picks that. There the loss is scaled
            so that small gradients are not lost; where no scale serves, the run goes on in float32.
        tf32: let a GPU round the factors of float32 products to 10 bits, which is several times
            faster. It changes nothing in bfloat16 or float16. Scores with it were not measured.
        device: auto (a GPU if there is one), cpu, cuda or cuda:N.
        seed: seed of the initial weights, the data order and all random draws.
        log_every: steps between lines of `log.jsonl`.
        validate_every: steps between validations; 0 validates only at the end.
        validation_share: the largest part of training's work that validations may take, as
            estimated from tokens. They then score some of the examples, evenly chosen; a text whose
            lines belong together and pictures to classify are scored whole. The finished model is
            always scored on all. 1 scores all each time.
        checkpoint_every: steps between regular checkpoints.
        keep_checkpoints: how many regular checkpoints to keep, besides the best one and those
            averaged with it.
        backup: where to keep a second copy of the run: an address (`s3://`, `gs://`) or a folder. A
            checkpoint is copied when it is written. Where `--out` holds no run, `--resume` fetches
            the one at the address and goes on with it.
        average: the most regular checkpoints, ending with the chosen one, to average into the final
            model. As many are taken as validate best by `best`, or by the first score without it.
            Without validation all are, save those from the warm-up.
        ema: decay of an exponential moving average of the weights, used for validation and the
            final model; 0 for none.
        best: the validation score that selects the final checkpoint; if not given, the last
            checkpoint is used.
        patience: validations without an improvement of `best` before training stops early; 0 never
            stops early.
        divergence_tries: how often diverged training returns to a good checkpoint, at half the
            learning rate, before it fails.
        freeze: parts of the model whose weights stay as they are, by the names that `describe`
            shows; patterns may contain `*`, such as `encoder*` or `*.norm*`.
        compile: compile the loss with torch.compile, for batches of one fixed shape; translation
            Transformers only. With auto a GPU does so where a run is long enough to repay it, and
            the choice is recorded in the run's recipe.
        capture: capture training steps as CUDA graphs and replay them, which pays for small models.
            With auto a GPU does so with the optimiser adam, for every task whose steps ask nothing
            of the host. Batches are filled up to a few shapes, and filler counts nowhere; batches
            of rare shapes run without. On a CPU the same step runs uncaptured over the same static
            tensors. With `compile` too, base trains 2.2 times as fast on one
            H200.
    """

    steps: Steps = 10_000
    batch_tokens: Steps = 4096
    accumulate: Steps = 1
    batches_per_step: Steps | None = None
    shard: Literal["auto", "none", "all", "node"] = "auto"
    recompute: bool = False
    timeout: Positive = 600.0
    optimiser: Literal["adam", "muon"] = "adam"
    learning_rate: Positive = 1e-3
    warmup: StepsOrNone = 1000
    schedule: Schedule = "inverse_sqrt"
    label_smoothing: Rate = 0.1
    clip: NotNegative = 1.0
    weight_decay: NotNegative = 0.0
    betas: list[Rate] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: Positive = 1e-9
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    tf32: bool = False
    device: str = "auto"
    seed: int = 1
    log_every: Steps = 50
    validate_every: StepsOrNone = 1000
    validation_share: Annotated[float, Range(most=1, above=0)] = 0.1
    checkpoint_every: Steps = 1000
    keep_checkpoints: Steps = 5
    backup: str | None = None
    average: Steps = 1
    ema: Rate = 0.0
    best: str | None = None
    patience: StepsOrNone = 0
    divergence_tries: StepsOrNone = 3
    freeze: list[str] = field(default_factory=list)
    compile: bool | Literal["auto"] = "auto"
    capture: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.patience and self.best is None,
            f"patience is {self.patience}, counts validations without a better score; set best "
            "to that score",
        )
        refuse_if(
            self.patience and not self.validate_every,
            f"patience is {self.patience}, counts validations; set validate_every above 0",
        )
        refuse_if(
            self.capture is True and self.optimiser != "adam",
            f"capture is true, needs the optimiser adam; optimiser is {self.optimiser}",
        )
        whole = "recompute" if self.recompute else "shard" if self.sharded else ""
        for key in ("compile", "capture"):
            refuse_if(
                bool(whole) and vars(self)[key] is True,
                f"{key} is true, does not go with {whole}; set it to auto or false",
            )
        refuse_if(
            self.sharded and self.optimiser == "muon",
            f"shard is {self.shard}, needs the optimiser adam; muon needs whole matrices",
        )
        refuse_if(len(self.betas) != 2, f"betas has {len(self.betas)} numbers, must have 2")
        refuse_if(
            self.average > self.keep_checkpoints,
            f"average is {self.average}, must be at most keep_checkpoints "
            f"({self.keep_checkpoints})",
        )

    @property
    def sharded(self) -> bool:
        """Whether ranks hold pieces of the weights."""
        return self.shard in ("all", "node")


def unfinished_warmup(config: TrainingConfig) -> str:
    """What to warn of if the learning rate is still rising at the last step; else ""."""
    if config.warmup < config.steps:
        return ""
    reached = config.learning_rate * config.steps / config.warmup
    return (
        f"training.warmup is {config.warmup}, training.steps is {config.steps}: the learning rate "
        f"rises to the end and reaches {reached:.3g} of {config.learning_rate:.3g}; set "
        f"training.warmup to {max(config.steps // 10, 1)} or so"
    )


def goes_on(config: TrainingConfig, step: int) -> str:
    """What to report if a finished run gets more steps. A schedule that falls to 0 at the last step
    falls anew."""
    line = f"goes on from step {step} to {config.steps}"
    if config.schedule not in ("linear", "cosine"):
        return line
    following = rate(config.schedule, config.learning_rate, config.warmup, config.steps, step + 1)
    return (
        f"{line}: training.schedule is {config.schedule}, so the learning rate rises from 0 to "
        f"{following:.3g} and falls to 0 again"
    )


def sharded(config: Config, weights: int, memory: int, world: int, local: int) -> Config:
    """The configuration with a `shard` of `auto` decided.

    Args:
        weights: the number of the model's weights.
        memory: bytes of a GPU; 0 on a CPU.
        world, local: the ranks, and those of a machine.
    """
    if config.shard != "auto":
        return config
    needed, most = 16 * weights, memory // 2  # of weights, gradients and two moments in float32
    fits = needed <= most or not memory or world == 1 or config.optimiser == "muon"
    within = 1 < local < world and needed <= most * local
    return replace(config, shard="none" if fits else "node" if within else "all")


def fastest(
    config: Config, device: str, weights: int, *, captures: bool, compiles: bool
) -> tuple[Config, str]:
    """The configuration with a `compile` and a `capture` of `auto` decided, and a line that says
    so; empty if nothing was to decide on a GPU.

    A pure function, so that a resumed run cannot decide otherwise. Compiling pays if it saves more
    than twice what it costs.

    Args:
        device: the device's type.
        weights: the number of the model's weights.
        captures, compiles: whether the task's steps can be captured, and its loss compiled.
    """
    asked = (config.compile, config.capture)
    if "auto" not in asked:
        return config, ""
    tokens = config.batch_tokens * config.accumulate
    speed = SPEEDS.get(config.precision, SPEED)
    seconds = config.steps * max(SHORTEST, 6.0 * weights * tokens / speed)
    captures, compiles = (
        able and not (config.sharded or config.recompute) for able in (captures, compiles)
    )
    able = device == "cuda" and config.optimiser == "adam" and captures
    capture = able if config.capture == "auto" else config.capture
    long = device == "cuda" and compiles and SAVED * seconds > 2.0 * COMPILING
    compiled = long if config.compile == "auto" else config.compile
    chosen = replace(config, compile=compiled, capture=capture)
    if device != "cuda":
        return chosen, ""
    how = {
        (True, True): "compiled and captured",
        (False, True): "captured and not compiled",
        (True, False): "compiled and not captured",
        (False, False): "neither captured nor compiled",
    }[bool(compiled), bool(capture)]
    # What was asked for needs no reason.
    reasons = []
    if config.capture == "auto" and not capture:
        reasons.append("this task or optimiser cannot be captured")
    if config.compile == "auto":
        short = f"the run is short ({seconds:.0f} s) or its loss cannot be compiled"
        reasons.append(f"compiling saves some {SAVED * seconds:.0f} s" if compiled else short)
    return chosen, ": ".join(filter(None, (f"training steps are {how}", ", and ".join(reasons))))
