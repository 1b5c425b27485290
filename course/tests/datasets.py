"""A folder of tiny data sets, in the form of the real ones: what experiments with --data read."""

import gzip
import io
import lzma
import tarfile
import wave
from itertools import cycle, islice
from pathlib import Path

import numpy as np

CAPTIONS = [
    ("A dog runs in a field.", "Ein Hund läuft auf einem Feld."),
    ("Two men sit on a bench.", "Zwei Männer sitzen auf einer Bank."),
    ("A child plays near the river.", "Ein Kind spielt am Fluss."),
]
SENTENCES = [
    ("Are you tired?", "Bist du müde?"),
    ("It is late.", "Es ist spät."),
    ("The animal was tired.", "Das Tier war müde."),
]
REVIEWS = [("1", "a warm and funny film"), ("0", "a dull , flat film")]
KOREAN = [("7", "1", "정말 재미있는 영화"), ("8", "0", "지루하고 재미없는 영화")]
TREE = "( (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)) )"


def write(path: Path, lines, count: int = 60) -> None:
    """The lines, again and again, compressed as the name says."""
    path.parent.mkdir(exist_ok=True)
    data = "".join(f"{line}\n" for line in islice(cycle(lines), count)).encode()
    path.write_bytes((gzip if path.suffix == ".gz" else lzma).compress(data))


def write_recordings(path: Path) -> None:
    """Two speakers say four digits, each a tone."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for speaker in ("ann", "bo"):
            for digit in range(4):
                sound = io.BytesIO()
                tone = np.sin(np.arange(1600) * (0.2 + 0.1 * digit)) * 9000
                with wave.open(sound, "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(8000)
                    file.writeframes(tone.astype("<i2").tobytes())
                member = tarfile.TarInfo(f"{digit}_{speaker}_0.wav")
                member.size = len(sound.getvalue())
                archive.addfile(member, io.BytesIO(sound.getvalue()))


def write_all(root: Path) -> Path:
    """Every data set that an experiment reads, but photographs."""
    for part, name in (("train", "train"), ("val", "dev")):
        for side, language in enumerate(("en", "de")):
            write(root / "multi30k" / f"{part}.{language}.gz", [p[side] for p in CAPTIONS])
            write(root / "tatoeba_en_de" / f"{name}.{language}.xz", [p[side] for p in SENTENCES])
    for part in ("train", "dev"):
        write(root / "sst2" / f"{part}.tsv.xz", ["\t".join(row) for row in REVIEWS])
        write(root / "nsmc_raw_sentiment" / f"{part}.tsv.xz", ["\t".join(row) for row in KOREAN])
        write(root / "wsj_treebank_sample" / f"{part}.mrg.xz", [TREE])
    write(root / "tinyshakespeare" / "train.txt.xz", ["To be, or not to be."])
    for part in ("train", "test"):
        write_recordings(root / "fsdd" / f"{part}.tar.gz")
    return root
