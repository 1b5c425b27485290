"""`transduct convert`: convert a model to or from another tool's format, shrink it, or combine
several."""

from collections.abc import Sequence
from pathlib import Path

from transduct.errors import TransductError
from transduct.interop import ctranslate2, hub, huggingface, int8, onnx, published, state_dict
from transduct.predictors.base import configuration, copy_model, load, model_directory
from transduct.predictors.model_directory import combine

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
    if others:
        if to or precision or shortlist:
            raise TransductError(
                "--with puts models of ours together as they are; make a directory of them first"
            )
        combine([model_directory(each) for each in (model, *others)], out)
        return
    if state_dict.is_table(model) and not (to or precision or shortlist):
        state_dict.read(Path(model), out)
        return
    foreign = hub.is_foreign(model)
    directory = hub.local(model) if foreign else model_directory(model)
    if foreign and not (to or precision or shortlist):
        published.read(directory, out)
        return
    configuration(directory)  # first of all, refuse what is not a model of ours
    if (to is None) == (precision is None and shortlist is None):
        raise TransductError(
            "give --format, for another tool, or --precision and --shortlist, for a model of ours"
        )
    if to:
        FORMATS[to](directory, out)
    else:
        beside = (
            dict
            if shortlist is None
            else lambda: load(model, verb="shortlist_of").shortlist_of(shortlist)
        )
        (int8.convert if precision else copy_model)(directory, out, beside)
