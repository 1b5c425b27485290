"""The weights of a published model, one at a time: a safetensors file, several, or pickles.

Nothing is read whole: files are mapped, and a tensor is looked at when it is asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transduct import storage
from transduct.errors import TransductError, require, rewording
from transduct.interop import pickled
from transduct.models.transformer import Config
from transduct.predictors.languages import Languages

INDEX, PICKLE, SAFE = "model.safetensors.index.json", "pytorch_model.bin", ".safetensors"
FOREIGN = ("tf_model.h5", "rust_model.ot", "flax_model.msgpack")  # weights that are not read
MOST_SHARDS = 1000
ROWS = 4096  # compared together


class Weights:
    """Tensors by name, from files that stay open.

    Args:
        files: an open file for each name.
        places: the path that each was read from, for errors.
    """

    def __init__(self, files: dict[str, Any], places: dict[str, Path], where: Path) -> None:
        self._files, self._places, self.where = files, places, where
        self.names = [*files]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for this."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def type_of(self, name: str) -> str:
        """The type of a tensor's numbers, as safetensors names it."""
        return str(self._files[name].get_slice(name).get_dtype())

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are equal, compared a few rows at a time."""
        if self.shape(one) != self.shape(other):
            return False
        sides = [self._files[name].get_slice(name) for name in (one, other)]
        return all(
            torch.equal(*(side[start : start + ROWS] for side in sides))
            for start in range(0, self.shape(one)[0], ROWS)
        )

    def tensor(self, name: str) -> Tensor:
        """A tensor of finite floating-point numbers.

        Raises:
            TransductError: it holds others.
        """
        damage, file = (SafetensorError, ValueError, RuntimeError), str(self._places[name])
        with rewording(
            damage, f"weight '{name}' cannot be read ({{error}}); copy it again", file=file
        ):
            found: Tensor = self._files[name].get_tensor(name)
        require(
            found.is_floating_point() and bool(found.isfinite().all()),
            f"weight '{name}' holds values that are not numbers; copy it again",
            file=file,
        )
        return found


def require_inside(path: Path, directory: Path) -> None:
    """Refuse a link out of a directory; in a cache of the hub its own blobs are inside.

    Raises:
        TransductError: the path leads elsewhere.
    """
    if not path.is_symlink():
        return
    home = directory.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parents[1] / "blobs")
    require(
        any(path.resolve().is_relative_to(each) for each in allowed),
        f"{path}: a link out of its directory; copy the file itself into {directory}",
    )


@contextmanager
def opened(directory: Path) -> Iterator[Weights]:
    """Open the weights of a folder.

    Raises:
        TransductError: there are none, one is damaged or missing, or two files hold one name.
    """
    with ExitStack() as stack:
        yield open_files(stack, _paths(directory))


def open_files(stack: ExitStack, paths: list[Path]) -> Weights:
    """The tensors of safetensors files, or of pickles, of which such files are made first."""
    temporary = Path(stack.enter_context(TemporaryDirectory(prefix="transduct-")))
    files: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for number, path in enumerate(paths):
        out = path if path.suffix == SAFE else temporary / f"{number}{SAFE}"
        if out != path:
            pickled.as_safetensors(path, out)
        with storage.reading_tensors(out, path):
            file = stack.enter_context(safe_open(out, "pt"))
            names = [*file.keys()]
        for name in names:
            require(name not in files, f"{path}: holds weight '{name}', as does {places.get(name)}")
            files[name], places[name] = file, path
    return Weights(files, places, paths[0])


def _paths(directory: Path) -> list[Path]:
    """The files of weights in a folder, safetensors first."""
    for single, index in ((storage.WEIGHTS, INDEX), (PICKLE, f"{PICKLE}.index.json")):
        if (directory / single).exists() or (directory / single).is_symlink():
            require_inside(directory / single, directory)
            return [directory / single]
        if (directory / index).exists():
            return _shards(directory, directory / index)
    names = [name for name in FOREIGN if (directory / name).exists()]
    if names:
        raise TransductError(
            f"{directory}: only {names[0]} here; expected {storage.WEIGHTS}: take it, or "
            f"{PICKLE}, from the model's page"
        )
    raise TransductError(
        f"{directory}: half a model, it holds no {storage.WEIGHTS} and no {PICKLE}; copy all of "
        "its files"
    )


def _shards(directory: Path, index: Path) -> list[Path]:
    """The files that an index names, each inside the folder."""
    listed = storage.read_object(index, "which file holds which weight").get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise TransductError(f"{index}: has no weight_map; copy it again")
    names = sorted({str(name) for name in listed.values()})
    require(
        len(names) <= MOST_SHARDS,
        f"{index}: names {len(names):,} files, at most {MOST_SHARDS} are read",
    )
    for name in names:
        require(
            Path(name).name == name and Path(name).suffix in (SAFE, ".bin"),
            f"{index}: names the file {name!r:.60}; expected names of files beside it",
        )
        require(
            (directory / name).exists(), f"{index}: names {name}, which is not here; copy all files"
        )
        require_inside(directory / name, directory)
    require(
        len({Path(name).suffix for name in names}) <= 1,
        f"{index}: names files of two kinds; copy the model again",
    )
    return [directory / name for name in names]


def content_of(config: Config, decoding: dict[str, Any], languages: Languages) -> dict[str, Any]:
    """The `config.json` of a translation model that is converted."""
    return {
        "format": storage.FORMAT,
        "task": "translation",
        "model": asdict(config),
        "family": "transformer",
        "decoding": decoding,
        "replace": [],
    } | ({"languages": asdict(languages)} if languages != Languages() else {})


def write_converted(
    out: Path,
    content: dict[str, Any],
    files: Mapping[str, str],
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensor: Callable[[str], Tensor],
) -> None:
    """Write a model directory, its weights one at a time.

    Args:
        content: its `config.json`.
        files: its other files of text.
    """
    with storage.new_directory(out) as folder:
        (folder / storage.CONFIG).write_bytes(storage.pack_json(content))
        for name, text in files.items():
            (folder / name).write_bytes(text.encode())
        storage.write_tensors(folder / storage.WEIGHTS, shapes, tensor)
