"""Files of checkpoints and model directories, written atomically as safetensors and JSON; nothing
is pickled."""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from transduct.errors import TransductError, disk_error, require, rewording

TYPES = {  # as safetensors names them
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
LARGEST = 1 << 26  # bytes of a file of JSON
FORMAT = 1  # of checkpoints and model directories; every released version stays loadable
WEIGHTS, OPTIMISER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
CONFIG, STATE = "config.json", "state.json"
SHORTLIST = "shortlist.safetensors"
# the file and the folder of a run that hold them
RECIPE, CHECKPOINTS = "recipe.yaml", "checkpoints"
# begins what Git LFS leaves in a file's place until the file is fetched
POINTER = b"version https://git-lfs"


def has_begun(run: Path) -> bool:
    """Whether the run in a folder has a checkpoint, whole or not."""
    return any(run.glob(f"{CHECKPOINTS}/step_*"))


def checkpointed_steps(run: Path) -> list[int]:
    """The steps of the run in a folder that have a whole checkpoint."""
    folders = (state.parent.name for state in run.glob(f"{CHECKPOINTS}/step_*/{STATE}"))
    return [int(name[5:]) for name in folders if name[5:].isdecimal()]


def write_directory(
    directory: Path, files: Mapping[str, bytes], replace: bool = False, parents: bool = True
) -> None:
    """Write `files` as a folder that appears whole or not at all. Names may contain subfolders.

    Args:
        replace: whether to replace an existing folder.
        parents: whether to make the folder that it is in.

    Raises:
        TransductError: if the folder exists, the disk is full or the path cannot be written.
    """
    with new_directory(directory, replace, parents) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@contextmanager
def new_directory(directory: Path, replace: bool = False, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary folder beside `directory` to be filled, then sync it to disk and rename it
    to `directory`. See `write_directory`.

    Args:
        parents: whether to make the folder that it is in.
    """
    temporary, aside = (
        directory.with_name(f".{directory.name}.{os.getpid()}.{name}")
        for name in ("part", "old.part")
    )
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=parents)
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            sync(path)
        if replace and directory.exists():
            directory.rename(aside)
        put_in_place(temporary, directory)
    except OSError as error:
        # What is read meanwhile, and a pipe that nobody reads any more, are no fault of this place.
        named = Path(error.filename) if isinstance(error.filename, str) else temporary
        inside = named in (directory, aside) or named.is_relative_to(temporary)
        if isinstance(error, BrokenPipeError) or not (inside or temporary.is_relative_to(named)):
            raise
        raise disk_error(directory, error) from error
    finally:
        if aside.exists() and not directory.exists():
            aside.rename(directory)
        for leftover in (temporary, aside):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Remove what `new_directory` has left beside a folder in processes that were killed."""
    for path in directory.parent.glob(".*.part"):
        if found := re.fullmatch(rf"\.{re.escape(directory.name)}\.(\d{{1,9}})\.part", path.name):
            try:
                os.kill(int(found[1]), 0)  # sends nothing, and fails if there is none
            except ProcessLookupError:
                remove(path)
            except PermissionError:
                pass  # somebody else's


def files_in(directory: Path, folders: Sequence[str] = ()) -> dict[str, bytes]:
    """The contents of the files in a directory and in these folders of it, by relative path."""
    paths = [
        path
        for folder in ("", *folders)
        for path in (directory / folder).iterdir()
        if path.is_file()
    ]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def require_folder(out: Path) -> None:
    """Raise TransductError if an address is given where a folder is made."""
    message = f"{out} is an address; give a folder as --out, then copy it there"
    require(":/" not in str(out), message)  # a path has lost the second bar of an address


def require_absent(out: Path) -> None:
    """Raise TransductError if the path exists."""
    require(not out.exists(), f"{out}: exists already; choose another name")


def put_in_place(finished: Path, directory: Path) -> None:
    """Rename a finished folder to its final name.

    Raises:
        TransductError: if the name is taken, perhaps since a moment ago.
    """
    try:
        finished.rename(directory)
    except OSError:
        require_absent(directory)
        raise
    sync(directory.parent)


def write_file(path: Path, content: bytes, parents: bool = False) -> None:
    """Replace a file atomically, or leave the old one.

    Args:
        parents: whether to make its folder.

    Raises:
        TransductError: if the disk is full or the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, as far as possible: a network file system keeps files that
    are open."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync(path: Path) -> None:
    """Flush a file's contents, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # some network file systems do not support it
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name; a shared parameter appears once."""
    return {name: p.detach() for name, p in model.named_parameters()}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    return save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def write_tensors(
    path: Path,
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensor_of: Callable[[str], Tensor],
) -> None:
    """Write a safetensors file one tensor at a time, so that only one is in memory.

    Args:
        shapes: the type and shape of each tensor.
        tensor_of: gives a tensor by its name, of that type and shape.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": TYPES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, (dtype, shape) in shapes.items():
            tensor = tensor_of(name).detach().to(dtype).cpu().contiguous()
            assert tuple(tensor.shape) == shape, f"{name} is {tuple(tensor.shape)}, not {shape}"
            # a view of its bytes: NumPy has no bfloat16
            file.write(tensor.flatten().view(torch.uint8).numpy().data)


def pack_json(content: Mapping[str, Any]) -> bytes:
    """A mapping as the bytes of a JSON file."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        TransductError: if the file is missing, truncated or of another kind, such as a pickle; it
            is never executed.
    """
    with reading_tensors(path):
        return load_tensors(path)


@contextmanager
def reading_tensors(path: Path, name: Path | None = None) -> Iterator[None]:
    """Within this, a safetensors file is read; what is wrong with it is a TransductError, which
    calls it `name`."""
    name = name or path
    try:
        check_file(path, "a safetensors file")
        path.open("rb").close()  # for Python's error message, which is clearer than the library's
        yield
    except OSError as error:
        raise TransductError(
            f"{name}: cannot be read ({error.strerror}); expected a safetensors file"
        ) from error
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise TransductError(
            f"{name}: not a whole safetensors file ({error}); it may be truncated or of another "
            "kind: copy it again"
        ) from error


def check_file(path: Path, what: str) -> None:
    """Reject a pipe or a device, on which reading would block, and a pointer of Git LFS."""
    require(
        not path.exists() or path.is_file() or path.is_dir(),
        f"{path}: not a regular file; expected {what}",
    )
    with suppress(OSError), path.open("rb") as file:
        require(
            file.read(len(POINTER)) != POINTER,
            f"{path}: a pointer of Git LFS, not {what}; fetch the files with: git lfs pull",
        )


def read_file(path: Path, what: str, most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        TransductError: it is missing, a pipe, a device or a pointer of Git LFS, or larger.
    """
    with rewording(OSError, f"cannot be read ({{error}}); expected {what}", file=str(path)):
        check_file(path, what)
        size = path.stat().st_size
        require(
            size <= most,
            f"{path}: holds {size:,} bytes, at most {most:,} are read; expected {what}",
        )
        return path.read_bytes()


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises TransductError if there is none."""
    data = read_file(path, what)
    with rewording(
        (ValueError, RecursionError), f"not valid JSON ({{error}}); expected {what}", file=str(path)
    ):
        content = json.loads(data)
    require(isinstance(content, dict), f"{path}: holds no JSON object; expected {what}")
    return content


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file that transduct wrote. Raises TransductError also if its format
    number is unknown."""
    content = read_object(path, what)
    found = content.get("format")
    require(
        found is not None or "model_type" not in content,
        f"{path}: Hugging Face's; make a model of ours of it: transduct convert {path.parent} OUT",
    )
    require(
        found is not None,
        f"{path}: has no 'format', so transduct did not write it, or wrote it for another tool; "
        f"expected {what}",
    )
    require(
        type(found) is int and 1 <= found <= FORMAT,
        f"{path}: format {found!r}, this version reads 1 to {FORMAT}; expected {what}, or install "
        "the transduct that wrote it",
    )
    return content


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy weights into a model with the same names and shapes.

    Raises:
        TransductError: if a name is missing or unknown, or a shape differs.
    """
    own = weights_of(model)
    _compare(own, weights, source)
    for name, parameter in own.items():
        parameter.copy_(weights[name])


def fill(model: nn.Module, weights: Mapping[str, Tensor], source: Path, copy: bool = False) -> None:
    """Replace a model's parameters for inference by these weights; shared parameters stay shared.

    Args:
        copy: whether to copy the weights, so that the file they are mapped from may be written
            over.

    Raises:
        TransductError: as `load_weights`.
    """
    own = dict(model.named_parameters())
    _compare(own, weights, source)
    new = {
        id(p): nn.Parameter(weights[name].to(p.dtype, copy=copy), False) for name, p in own.items()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]


def _compare(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    stranger = "the file does not belong to this configuration"
    if odd := sorted(own.keys() ^ weights.keys()):
        where = "lacks" if odd[0] in own else "has an unknown"
        raise TransductError(f"{source}: {where} weight '{odd[0]}'; {stranger}")
    for name, parameter in own.items():
        found = weights[name]
        require(
            parameter.is_floating_point() == found.is_floating_point(),
            f"{source}: weight '{name}' holds {str(found.dtype).removeprefix('torch.')}; the file "
            "does not belong to this model",
        )
        require(
            parameter.shape == found.shape,
            f"{source}: weight '{name}' is {tuple(found.shape)}, the configuration says "
            f"{tuple(parameter.shape)}; {stranger}",
        )


def average(several: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, computed in float64."""
    total: dict[str, Tensor] = {}
    count = 0
    for weights in several:
        count += 1
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: tensor / count for name, tensor in total.items()}


def strict_json(item: Any) -> str:
    """JSON text with null in place of NaN and infinity, which JSON cannot express."""
    return json.dumps(
        json.loads(json.dumps(item), parse_constant=lambda _: None), ensure_ascii=False
    )
