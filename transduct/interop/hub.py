"""Models by their names on Hugging Face's hub, and models that are made ours as they are loaded.

The files lie in the cache that all users of the hub share. What `transduct.load` makes of them lies
in a cache of ours, so that it is made once.
"""

import os
import re
from hashlib import sha256
from pathlib import Path

from transduct import __version__, storage
from transduct.errors import TransductError, needing
from transduct.interop import published

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
# What a model consists of beside its weights, and its weights, the best first.
BESIDE = ("*.json", "*.jinja", "*.model", "*.spm", "merges.txt")
KINDS = ("model*.safetensors", "pytorch_model*.bin")


def is_name(given: str) -> bool:
    """Whether it is a name on the hub, and no path: it has two parts, and the first is no folder
    here."""
    return bool(NAME.fullmatch(given)) and not Path(given.partition("/")[0]).exists()


def folder(name: str) -> Path:
    """The folder of a model on the hub, downloaded if need be.

    Raises:
        TransductError: there is no such model, or no network.
    """
    with needing("huggingface", "huggingface_hub"):
        import huggingface_hub
    from huggingface_hub import errors

    repository, _, revision = name.partition("@")
    found = Path()
    try:
        for kind in KINDS:  # the better kind of weights alone, where there is one
            wanted = [kind, *BESIDE]
            found = Path(
                huggingface_hub.snapshot_download(
                    repository, revision=revision or None, allow_patterns=wanted
                )
            )
            if any(found.glob(kind)):
                break
    except errors.RepositoryNotFoundError as error:
        raise TransductError(
            f"{name}: no model of this name on the hub; look it up at https://huggingface.co/models"
        ) from error
    except errors.HFValidationError as error:
        raise TransductError(f"{name}: not a name on the hub; give OWNER/MODEL") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        directory = repository.rpartition("/")[2]
        raise TransductError(
            f"{name}: the hub cannot be reached, and the model is not in its cache; where there is "
            f"a network run: hf download {repository} --local-dir {directory}, and give that folder"
        ) from error
    return found


def local(given: str) -> Path:
    """The folder that a path or a name on the hub stands for."""
    path = Path(os.path.expanduser(given))
    return folder(given) if not path.exists() and is_name(given) else path


def is_foreign(given: object) -> bool:
    """Whether a model must be made ours before it is loaded."""
    if not isinstance(given, str | os.PathLike):
        return False
    path = Path(os.path.expanduser(given))
    return published.found_in(path) if path.is_dir() else is_name(str(given))


def converted_copy(given: str | Path) -> Path:
    """The model directory made of a folder or a name on the hub, in our cache.

    Raises:
        TransductError: it cannot be converted.
    """
    directory = local(str(given))
    files = sorted(path for path in directory.iterdir() if path.is_file())
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    identity = repr((__version__, storage.FORMAT, str(directory.resolve()), states))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"[^\w.-]", "-", str(given).strip("/"))[-60:]
    out = home / "transduct" / "models" / f"{name}-{sha256(identity.encode()).hexdigest()[:16]}"
    if not (out / storage.CONFIG).exists():
        published.read(directory, out)
    return out
