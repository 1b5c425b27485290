"""Pictures that a tiny model can learn to tell apart: a bar across, down or aslope, of any colour,
anywhere."""

import io
import tarfile
from pathlib import Path

import numpy as np

BARS = ("across", "down", "aslope")
SIDE = 12


def bar(kind: str, seed: int, side: int = SIDE) -> np.ndarray:
    """(side, side, 3)."""
    random = np.random.default_rng([seed, BARS.index(kind)])
    picture = random.integers(0, 80, (side, side, 3)).astype(np.uint8)
    place, colour, (rows, columns) = (
        random.integers(side - 1),
        random.integers(100, 256, 3),
        np.indices((side, side)),
    )
    along = {
        "across": rows - place,
        "down": columns - place,
        "aslope": (rows + columns - place) % side,
    }[kind]
    picture[(along == 0) | (along == 1)] = colour
    return picture


def png(picture: np.ndarray) -> bytes:
    # An extra, which collecting the GPU tests must not need.
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


def write_pictures(path: Path, count: int, start: int = 0, side: int = SIDE) -> None:
    """Bars of each kind in turn, `count` in all, in a folder, or in an archive as the name ends."""
    bars = [(BARS[i % 3], i) for i in range(start, start + count)]
    contents = {f"{kind}/{i:04}.png": png(bar(kind, i, side)) for kind, i in bars}
    if not path.suffix:
        for name, data in contents.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return
    with tarfile.open(path, "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
