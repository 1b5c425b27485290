"""Model directories as training leaves them: the model and its card; and models that start from the
weights of another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from transduct import __version__, storage
from transduct.data.files import composed_labels, in_words, names_of
from transduct.errors import TransductError, require
from transduct.predictors.base import Notify, configuration
from transduct.predictors.model_directory import shown_labels
from transduct.training.config import TrainingConfig

LATER = ("tokenizer.size", "data.train", "model.start_from")  # decide sizes that data tell
Rename = Callable[[dict[str, Tensor]], None]


@dataclass(frozen=True)
class LabelRows:
    """The weights of a model that have a row for each label, perhaps followed by others, such as
    one for "no object".

    Labels are ordered as in the training data, so the rows of a model to start from must be matched
    by label.

    Attributes:
        labels: in the order of this model's rows.
        keys: those under which `config.json` lists another model's labels, such as ("pictures",
            "labels").
        weights: patterns for the names of these weights.
    """

    labels: Sequence[str]
    keys: Sequence[str]
    weights: Sequence[str]

    def order(
        self, model: nn.Module, directory: Path, notify: Notify, weights: dict[str, Tensor]
    ) -> None:
        """Reorder the weights of another model to this one's labels, in place; missing rows
        are `model`'s.

        Raises:
            TransductError: the other model's `config.json` cannot be read.
        """
        rows = {
            name: weight
            for name, weight in storage.weights_of(model).items()
            if name in weights and any(fnmatchcase(name, pattern) for pattern in self.weights)
        }
        if not rows:
            return
        theirs = self._labels_in(directory)
        if theirs == list(self.labels):
            return
        places = {label: place for place, label in enumerate(theirs)}
        known, taken = [label for label in self.labels if label in places], False
        for name, weight in rows.items():
            rest = len(weight) - len(self.labels)
            if len(weights[name]) != len(theirs) + rest:  # a head with another number of outputs
                weights[name] = weight
            elif weights[name].shape[1:] == weight.shape[1:]:
                # another width is refused later, with all weights
                mixed = weight.clone()
                to = [number for number, label in enumerate(self.labels) if label in places]
                mixed[to] = weights[name][[places[label] for label in known]]
                mixed[len(self.labels) :] = weights[name][len(theirs) :]
                weights[name], taken = mixed, True
        known = known if taken else []
        new = [label for label in self.labels if label not in known]
        added = f"; new: {', '.join(new)}" if new else ""
        notify(f"{directory}: rows taken by label, {len(known)} of {len(self.labels)}{added}")

    def _labels_in(self, directory: Path) -> list[str]:
        found: Any = configuration(directory)
        for key in self.keys:
            found = found.get(key) if isinstance(found, dict) else None
        return composed_labels(list(map(str, found))) if isinstance(found, list) else []


def start_from(
    model: nn.Module, directory: Path, notify: Notify, rename: Rename | None = None
) -> None:
    """Copy the weights of the model in `directory` into `model` wherever the names agree; the rest
    is unchanged.

    Args:
        rename: changes the dictionary of the other model's weights before names are compared.

    Raises:
        TransductError: no name agrees, a weight has another shape, or this model has no bias where
            the other does.
    """
    weights = storage.read_tensors(directory / storage.WEIGHTS)
    if rename is not None:
        rename(weights)
    own = dict(model.named_parameters(remove_duplicate=False))  # a tied table has several names
    taken = [name for name in own if name in weights]
    require(
        "output_bias" not in weights or vars(model.config).get("output_bias") is not False,
        f"{directory}: its output has a bias, this model's has none; set model.output_bias=true",
    )
    require(
        taken,
        f"{directory}: shares no weight with this model; start from a model of the same family",
    )
    check_shapes(own, weights, directory, model.config)
    with torch.no_grad():
        for name in taken:
            own[name].copy_(weights[name])
    count, whole = (
        len({id(p) for p in parameters})
        for parameters in ([own[name] for name in taken], own.values())
    )
    left = sorted(weights.keys() - own.keys())
    rest = ", the rest is new" if count < whole else ""
    if left:
        rest += f"; not taken of it: {shown_labels(left)}"
    notify(f"started from {directory}: {count} of {whole} weights taken{rest}")


def check_shapes(
    own: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    directory: Path,
    config: Any,
    derived: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check that weights of the model in `directory` have the shapes of those of the same names.

    Args:
        config: of this model, to name the keys that differ.
        derived: the keys of those fields that other sections decide.

    Raises:
        TransductError: one has another shape.
    """
    for name in own.keys() & other.keys():
        if own[name].shape != other[name].shape:
            before = configuration(directory).get("model")
            theirs = before if isinstance(before, dict) else {}
            unequal = [
                f"{derived.get(key, f'model.{key}')} is {value}, that one has {theirs[key]}"
                for key, value in vars(config).items()
                if key in theirs and theirs[key] != value and derived.get(key) not in LATER
            ]
            raise TransductError(
                f"model.start_from: {directory}: weight '{name}' is {tuple(other[name].shape)}, "
                f"this model's is {tuple(own[name].shape)}; give this model the sizes of that one"
                + (f" ({'; '.join(unequal)})" if unequal else "")
            )


def write_model(
    directory: Path,
    task: str,
    model: Any,
    settings: Mapping[str, Any],
    files: Sequence[Path],
    card: str,
) -> None:
    """Write a model directory, in place of one that is there.

    Args:
        settings: further keys of `config.json`, beside the task's name and the model's
            configuration.
        files: to copy into it, such as tokenizers.
    """
    config = {
        "format": storage.FORMAT,
        "task": task,
        "transduct": __version__,
        "model": asdict(model.config),
        **settings,
    }
    content = {
        storage.CONFIG: storage.pack_json(config),
        storage.WEIGHTS: storage.pack(storage.weights_of(model)),
        "card.md": card.encode(),
    }
    content |= {path.name: path.read_bytes() for path in files}
    storage.write_directory(directory, content, replace=True)


def card(
    title: str,
    made_of: str,
    training: TrainingConfig,
    scores: Mapping[str, float],
    log: Mapping[str, Any],
    how: str = "",
) -> str:
    """The model card: what the model was trained on, and its scores.

    Args:
        made_of: "1,000 pairs from a.de, a.en (left out: none)".
        how: how the scores were measured.
    """
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in scores.items())
    batches = training.batches_per_step or training.accumulate * log.get("ranks", 1)
    tokens = training.batch_tokens * batches
    chosen, best = f"seed {training.seed}, {training.precision}.", log.get("best_step")
    averaged = log.get("averaged") or [best or log["step"]]
    if best is not None:
        chosen += f"\nThe weights are those of step {best:,}, the best by {training.best}"
    elif len(averaged) > 1:
        chosen += f"\nThe weights are those of step {averaged[-1]:,}, the last"
    if best is not None or len(averaged) > 1:
        before = ", ".join(f"{step:,}" for step in averaged[:-1])
        chosen += f", averaged with those of step {before}." if before else "."
    if training.freeze:
        chosen += f"\nThese parts were frozen: {', '.join(training.freeze)}."
    if log.get("stopped"):
        chosen += f"\nTraining {log['stopped']}."
    if by_count := log.get("average_scores"):
        counts = ", ".join(f"of {count} {score:.4g}" for count, score in by_count.items())
        chosen += f"\nAverages of checkpoints had this {log['average_metric']}: {counts}."
    table = (
        f"Scores of the final weights on the validation set{how}:\n\n| score | value |\n| --- | "
        f"--- |\n{rows}"
    )
    return f"""# {title}

Trained with transduct {__version__} on {made_of},
{log["step"]:,} steps of at most {tokens:,} tokens, {log["seconds"]:.0f} s, {chosen}

{table if scores else "It was not measured: its recipe has no validation set."}
"""


def searched(beam: int) -> str:
    """The search, described for a card."""
    return "greedy" if beam == 1 else f"beam {beam}"


def files_summary(data: Any, dropped: Mapping[str, int]) -> str:
    """The origin of the corpus of a `data` section, as in "from a.de, a.en (left out: 3 empty)"."""
    return (
        f"from {', '.join(names_of(data.train)) or 'a generated corpus'} (left out: "
        f"{in_words(dropped) or 'none'})"
    )
