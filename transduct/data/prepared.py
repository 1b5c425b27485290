"""A corpus that `transduct prepare` made, as a folder of this machine.

Apart from `data.preparing`, because a run that uses such a corpus prepares nothing. One at an
address (`s3://`, `gs://`, `hf://`, `https://`) is copied as a whole: a shuffled epoch reads from
all of it.
"""

from pathlib import Path

from transduct.data.corpus import MANIFEST
from transduct.data.files import Notify
from transduct.data.places import copy_to, filling, is_address, most_bytes, remove_oldest
from transduct.data.preparing import CORPUS, JOB
from transduct.data.tokenizer import tokenizer_files
from transduct.errors import require, rewording
from transduct.storage import read_object


def folder_of_corpus(corpus: str, notify: Notify) -> Path:
    """The folder of a prepared corpus. One at an address is copied, unless it has been; the copy
    stays until this process ends, and longer where there is room.

    Raises:
        TransductError: it cannot be reached, is damaged, is no such corpus, or takes more room than
            copies may.
    """
    if not is_address(corpus):
        return Path(corpus)
    address, made = corpus.rstrip("/"), "a corpus that transduct prepare made"
    with filling(f"{address}/{CORPUS}/{MANIFEST}") as folder:
        sums: dict[str, str | None] = {JOB: None, f"{CORPUS}/{MANIFEST}": None}
        _copy(address, folder, sums)
        with rewording(
            (KeyError, TypeError, AttributeError), f"not {made}; give another", file=address
        ):
            shared = read_object(folder / JOB, made)["tokenizer"]["shared"]
            files = read_object(folder / CORPUS / MANIFEST, made)["files"]
            sums |= dict.fromkeys(tokenizer_files(shared))
            sums |= {f"{CORPUS}/{name}": facts["sha256"] for name, facts in files.items()}
            size = sum(facts["size"] for facts in files.values())
        # A name that leads elsewhere could replace any file of the user's.
        require(
            all(name == Path(name).name for name in files),
            f"not {made}; give another",
            file=address,
        )
        require(
            size <= most_bytes(),
            f"takes {size / 1e9:.3g} GB, and copies may take {most_bytes() / 1e9:.3g} GB; set "
            "TRANSDUCT_CACHE_GB higher",
            file=address,
        )
        if any(not (folder / name).exists() for name in sums):
            notify(f"copying the corpus at {address} to {folder}: {size / 1e9:.3g} GB")
        remove_oldest(folder, size)
        _copy(address, folder, sums)
        (folder / JOB).touch()  # copies used longest ago are removed first
    return folder


def _copy(address: str, folder: Path, sums: dict[str, str | None]) -> None:
    """Copy the files below an address that the folder lacks, by name and SHA-256."""
    for name, sha256 in sums.items():
        if not (folder / name).exists():
            copy_to(f"{address}/{name}", folder / name, sha256)
