"""The server as an ASGI application, for Ray Serve and for any server of such applications:

from transduct.serving.application import application

app = application(["runs/en-de", "de-en=runs/old"])
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduct.errors import require, rewording
from transduct.predictors.terms import read_glossary
from transduct.serving.front import Settings
from transduct.serving.keys import Keys
from transduct.serving.served_models import Models, Served
from transduct.serving.service import Service


def application(models: Sequence[str], **settings: Any) -> Any:
    """The ASGI application that serves some models, which are loaded now. It holds no state but
    these and the queue.

    Args:
        models: paths, or NAME=PATH, or en-de=PATH for a model that does not know its languages.
        settings: as for `service_of`.

    Raises:
        TransductError: there is no such model, or a setting is wrong.
    """
    return service_of(models, **settings).application()


def service_of(
    models: Sequence[str],
    *,
    waiting: int = 1_000,
    keys: Path | None = None,
    memory: int | None = None,
    pivot: bool = True,
    suggestions: Path | None = None,
    files: Path | None = None,
    glossary: Sequence[str] | None = None,
    device: str = "auto",
    precision: str = "float32",
    options: Mapping[str, Any] | None = None,
    allow_origin: Sequence[str] | None = None,
    allow_host: Sequence[str] | None = None,
    trusted_proxy: Sequence[str] | None = None,
    prefix: str = "",
    access_log: bool = False,
) -> Service:
    """The service of some models.

    Args:
        waiting: how many inputs may wait for each model.
        keys: a file of keys; see `keys.Keys`.
        memory: the most megabytes of weights to hold.
        pivot: whether two models are chained where none has a pair.
        suggestions: the file that takes suggested translations.
        files: the folder of translated documents, which replicas share.
        glossary: NAME=FILE of each glossary that requests may name.
        options: laid over the options of each model, such as its languages.
        allow_origin, allow_host, trusted_proxy, prefix, access_log: see `front.Settings`.
    """
    require(waiting >= 1, f"--waiting is {waiting}, must be at least 1")
    require(memory is None or memory >= 1, f"--memory is {memory}, must be at least 1 (MB)")
    require(
        files is None or files.is_dir(), f"--files is {files}, which is no folder; make it first"
    )
    if suggestions is not None:
        problem = "cannot take --suggestions ({error}); give another file"
        with rewording(OSError, problem, file=str(suggestions)):
            suggestions.open("ab").close()
    settings = Settings(
        allow_origin or (), allow_host or None, trusted_proxy or (), prefix, access_log
    )
    known = None if keys is None else Keys(keys)
    glossaries = {}
    for each in glossary or ():
        name, _, path = each.partition("=")
        require(name and path, f"--glossary is {each!r:.60}, expected NAME=FILE")
        glossaries[name] = read_glossary(Path(path))
    served = Models(
        [Served.of_words(each) for each in models],
        waiting,
        memory and memory * 10**6,
        pivot,
        device,
        precision,
        options,
    )
    served.load()
    return Service(served, known, settings, suggestions, files, glossaries)
