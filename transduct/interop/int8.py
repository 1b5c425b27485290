"""8-bit quantised copies of translation models: a quarter of the size, and faster on a CPU."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from transduct import storage
from transduct.errors import require
from transduct.inference.quantised import quantise
from transduct.interop.export import configured, loaded
from transduct.kernels.cpu import report

# for the card
NOTE = b"\nThis copy is quantised to 8 bits; the scores are those of the model it was made from.\n"


def convert(directory: Path, out: Path, more: Callable[[], Mapping[str, bytes]] = dict) -> None:
    """Write a quantised copy of the Transformer in a model directory, which is used like the
    original.

    Args:
        more: makes further files to put into the copy; called only once the model has been checked.

    Raises:
        TransductError: if the model is not a translation Transformer, is already quantised or has
            weights that are not finite, or `out` exists.
    """
    settings, config = configured(directory, out, "no other model is quantised yet")
    model = loaded(directory, config)
    require(
        all(bool(weight.isfinite().all()) for weight in model.parameters()),
        f"{directory / storage.WEIGHTS}: holds numbers that are not finite; train the model "
        "again, at a lower rate",
    )
    quantise(model)
    files = storage.files_in(directory)
    changed = {
        **({"card.md": files["card.md"] + NOTE} if "card.md" in files else {}),
        storage.CONFIG: storage.pack_json({**settings, "quantised": "int8"}),
        storage.WEIGHTS: storage.pack(storage.weights_of(model)),
    }
    storage.write_directory(out, {**files, **changed, **more()})
    [products, *_] = report()
    if products.used is None:
        warnings.warn(
            f"the 8-bit model is a quarter of the size, but not faster on this machine: "
            f"{products.reason}",
            stacklevel=2,
        )
