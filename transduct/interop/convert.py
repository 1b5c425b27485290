"""`transduct convert`: convert a model to or from another tool's format, shrink it, or combine
several."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from transduct.errors import TransductError, require
from transduct.interop import ctranslate2, hub, huggingface, int8, onnx, published, state_dict
from transduct.predictors.base import configuration, copy_model, load, model_directory
from transduct.predictors.ensembles import combine

FORMATS = {
    "ctranslate2": ctranslate2.convert,
    "huggingface": huggingface.convert,
    "onnx": onnx.convert,
}
PRECISIONS = ("int8",)


def convert(
    model: str,
    out: Path,
    to: str | None,
    precision: str | None,
    shortlist: Path | None,
    others: Sequence[str],
) -> None:
    """Convert a model to or from another format.

    Args:
        model: a run, a model directory, or a folder or hub name of Hugging Face's.
        to: the tool to write the model for.
        precision: write a copy in this precision.
        shortlist: text like that to be translated, to add a lexical shortlist.
        others: models to put into an ensemble with it.

    Raises:
        TransductError: the options exclude each other, there is nothing to do, or the model cannot
            be converted.
    """
    for name, known in ((to, FORMATS), (precision, PRECISIONS)):
        if name is not None and name not in known:
            raise TransductError(f"unknown '{name}'; known are: {', '.join(known)}")
    asked = to or precision or shortlist
    if others:
        require(
            not asked,
            "--with puts models of ours together as they are; make a directory of them first",
        )
        combine([model_directory(each) for each in (model, *others)], out)
    elif state_dict.is_table(model) and not asked:
        state_dict.read(Path(model), out)
    elif hub.is_foreign(model) and not asked:
        published.read(hub.local(model), out)
    else:
        _converted(model, out, to, precision, shortlist)


def _converted(
    model: str, out: Path, to: str | None, precision: str | None, shortlist: Path | None
) -> None:
    """Write a model of ours for another tool, or a smaller or faster copy of it."""
    directory = hub.local(model) if hub.is_foreign(model) else model_directory(model)
    configuration(directory)  # first of all, refuse what is not a model of ours
    ours = precision or shortlist
    require(
        bool(to) != bool(ours),
        "give --format, for another tool, or --precision and --shortlist, for a model of ours",
    )

    def more() -> Mapping[str, bytes]:
        return load(model, verb="shortlist_of").shortlist_of(shortlist) if shortlist else {}

    if to:
        FORMATS[to](directory, out)
    elif precision:
        int8.convert(directory, out, more)
    else:
        copy_model(directory, out, more)
