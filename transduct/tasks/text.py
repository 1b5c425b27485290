"""Shared by tasks over text: the tokenizers of a run, and what batches are filled up to."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from transduct.data.files import Refused
from transduct.data.filters import TAKE_OUT, leaked
from transduct.data.text import texts_of
from transduct.data.tokenizer import TOKENIZER, Tokenizer, train_tokenizer
from transduct.errors import require
from transduct.predictors.base import Notify
from transduct.records import NotNegative
from transduct.storage import has_begun, read_object, write_file
from transduct.tasks.base import Task
from transduct.training.config import TrainingConfig

LONG = 30  # characters of a line that two texts do not share by chance
# the file in a run's directory that says which tokenizers it began with
DIGESTS = "tokenizer.digests.json"
SPARE = 1.05  # how far BPE dropout may lengthen a batch of fixed shape beyond its expected length


def run_tokenizer(
    path: Path,
    start: Path | None,
    train: Callable[[], Tokenizer],
    notify: Notify,
    dropout: float = 0.0,
    names: Sequence[str] = (TOKENIZER,),
) -> Tokenizer:
    """Load the tokenizer at `path`; before the first step it is made: taken from the model to start
    from, or trained.

    Args:
        start: the model directory to start from.
        names: the files to look for in `start`; the first one is taken.

    Raises:
        TransductError: BPE dropout is asked for, but the tokenizer has no merges to drop; or the
            file is missing from a run with checkpoints, or changed there: no other tokenizer fits
            them.
    """
    begun = has_begun(path.parent)
    expected = _digests_of(path.parent).get(path.name)
    require(
        not (begun and path.exists()) or expected in (None, Tokenizer.load(path).digest),
        f"{path}: has changed since its run began, and the checkpoints here were trained with "
        "the old one; put that back or choose another --out",
    )
    brought = (
        next((start / name for name in names if (start / name).exists()), None) if start else None
    )
    if (
        brought
        and not begun
        and path.exists()
        and Tokenizer.load(path).digest != Tokenizer.load(brought).digest
    ):
        path.unlink()  # made before `start_from` was set, or set to another model
    if not path.exists():
        require(
            not begun,
            f"{path}: is missing, and the checkpoints here were trained with it; copy it back",
        )
        tokenizer = Tokenizer.load(brought) if brought else train()
        if dropout:  # fails if another model's tokenizer does not support it
            tokenizer.resegment([], dropout, Random())
        write_file(path, tokenizer.text.encode())
        made = f"taken from {start}" if brought else "trained"
        notify(f"{path.name}: {tokenizer.size:,} tokens, {made} and saved")
    tokenizer = Tokenizer.load(path)
    digests = {**_digests_of(path.parent), path.name: tokenizer.digest}
    if digests != _digests_of(path.parent):
        write_file(path.parent / DIGESTS, json.dumps(digests, indent=1).encode())
    return tokenizer


def _digests_of(run: Path) -> dict[str, str]:
    """The digests of a run's tokenizers by file name, as they were when its training began; runs of
    0.1 have none."""
    return read_object(run / DIGESTS, "digests of tokenizers") if (run / DIGESTS).exists() else {}


def capacity_of(training: TrainingConfig, dropout: float = 0.0) -> int:
    """The tokens up to which batches are filled, where steps are captured; else 0.

    Args:
        dropout: BPE dropout, which may lengthen a batch.
    """
    spare = SPARE if dropout else 1.0
    return int(training.batch_tokens * spare) if training.capture is True else 0


@dataclass(frozen=True)
class TextTraining(TrainingConfig):
    """How a model over texts is trained; see `TrainingConfig`.

    Attributes:
        r_drop: alpha of R-Drop (Liang et al. 2021, equation 4); 0 turns it off. Every batch gets
            two forward passes with different dropout, whose predictions are pulled together. Steps
            take twice as long, and small corpora often gain.
    """

    r_drop: NotNegative = 0.0


class TextTask(Task):
    """A task with one vocabulary.

    Attributes:
        against_dropout: why it does not support BPE dropout; empty if it does.
    """

    against_dropout: str = ""
    tokenizer: Tokenizer

    def check(self) -> None:
        config = self.tokenizer_config
        require(
            config.shared,
            "{key} is false, but the texts have one side; set it to true",
            key="tokenizer.shared",
        )
        require(
            not (config.dropout and self.against_dropout),
            f"{{key}} is {config.dropout}, but {self.against_dropout}; set it to 0",
            key="tokenizer.dropout",
        )

    def make_tokenizer(self, texts: Iterable[str]) -> None:
        """`run_tokenizer`; the texts are read only if one is to be trained."""
        path, config = self.directory / TOKENIZER, self.tokenizer_config
        self.tokenizer = run_tokenizer(
            path,
            self.model.start,
            lambda: train_tokenizer(texts, config),
            self.notify,
            config.dropout,
        )
        self.vocabulary = self.tokenizer.size

    def read_validation(self) -> None:
        """Read the lines to validate on."""
        data, refused = self.data, Refused(self.data.broken)
        if data.valid is not None:
            self._validation = list(texts_of([data.valid], Path(data.root), refused))
            refused.report(self.notify, "data.valid: ")

    def report_known_lines(self) -> None:
        """Before the first step, warn of lines to validate or test on that are trained on. Short
        ones recur by chance."""
        data, root = self.data, Path(self.data.root)
        sources = {"validation": data.valid, "test": data.test}
        for name, source in {} if has_begun(self.directory) else sources.items():
            if source is None or any(not (root / file).exists() for file in source.files()):
                continue  # a test set may be missing while the model trains
            lines = [t for t in texts_of([source], root, Refused("skip")) if len(t) >= LONG]
            trained = texts_of(data.train, root, Refused("skip"))
            what = f"{name} lines of {LONG} characters or more"
            if report := leaked(lines, trained, what, TAKE_OUT):
                self.notify(report)

    @property
    def capacity(self) -> int:
        """The tokens up to which batches are filled; 0 for none."""
        return capacity_of(self.training, self.tokenizer_config.dropout)
