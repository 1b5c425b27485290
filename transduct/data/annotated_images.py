"""Pictures with boxes for object detection: annotated ones, or photographs pasted on canvases.

A scene is a square picture with the objects in it. A training scene is a function of (seed, epoch,
number).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from transduct.data.archives import read_members
from transduct.data.batching import FIXED, philox
from transduct.data.corpus import Corpus
from transduct.data.files import Refused, pack, unpack
from transduct.data.images import ENDINGS, Picture, fitted, read_picture, resized
from transduct.data.lines import LongLine, check_text, composed, numbered, read_lines
from transduct.data.samples import find_corpus
from transduct.errors import TransductError, placing, require, rewording
from transduct.records import AtLeastOne, Checked, refuse_if

PHOTOGRAPH = 32  # pixels, the side of a stored photograph


@dataclass(frozen=True)
class Collage(Checked):
    """How scenes are made of photographs.

    Attributes:
        count: scenes in an epoch.
        objects: the minimum and maximum number of photographs in a scene; fewer if they do not fit.
        sizes: the minimum and maximum side of a photograph on the canvas, in pixels.
        photographs: the range of photographs to use. A hash maps each name to a fixed number in [0,
            1); those from the first bound to below the second are used, so [0.0, 0.9] and [0.9,
            1.0] are disjoint.
        fresh: whether each epoch has new scenes; otherwise they are the same in every epoch.
    """

    count: AtLeastOne = 4000
    objects: list[int] = field(default_factory=lambda: [1, 5])
    sizes: list[int] = field(default_factory=lambda: [24, 48])
    photographs: list[float] = field(default_factory=lambda: [0.0, 1.0])
    fresh: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("objects", 1), ("sizes", 4)):
            pair = getattr(self, name)
            refuse_if(
                len(pair) != 2 or not least <= pair[0] <= pair[1],
                f"{name} is {pair}, must be two numbers from {least} on, the smaller first",
            )
        refuse_if(
            len(self.photographs) != 2
            or not 0.0 <= self.photographs[0] < self.photographs[1] <= 1.0,
            f"photographs is {self.photographs}, must be two numbers from 0 to 1, the smaller "
            "first",
        )


@dataclass(frozen=True)
class SceneSource:
    """A corpus of pictures with objects.

    Attributes:
        images: a folder, or a tar archive, plain or compressed.
        boxes: a file of lines {"file": "a.png", "boxes": [[x0, y0, x1, y1], ...], "labels": ["cat",
            ...]}, in pixels.
        collage: alternatively, how to make scenes of the pictures; the name of a picture's folder
            is its label.
    """

    images: str
    boxes: str | None = None
    collage: Collage | None = None

    def __post_init__(self) -> None:
        refuse_if(
            (self.boxes is None) == (self.collage is None),
            "give exactly one of boxes, a file with the places of objects, and collage, to make "
            "scenes",
        )

    def files(self) -> list[str]:
        """The files of the corpus, by their names in the recipe."""
        return [name for name in (self.images, self.boxes) if name is not None]


@dataclass(frozen=True)
class Example:
    """A stored picture: a square scene, or a photograph, which has one label and no boxes.

    Attributes:
        boxes: (A, 4) corners (x0, y0, x1, y1) in pixels.
        labels: (A,) class numbers.
    """

    picture: Picture
    boxes: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class SceneCorpus:
    """How scenes are made of photographs; `transduct_corpora.collages` has the one of `collage`.

    Attributes:
        paint: a photograph by its number, how many there are, the collage, the side of the canvas
            and random numbers -> a scene.
    """

    paint: Callable[[Callable[[int], Example], int, Collage, int, np.random.Generator], Example]


def read_examples(
    source: SceneSource, root: Path, side: int, label: Callable[[str], int], refused: Refused
) -> Iterator[Example]:
    """Read the pictures of a corpus, photographs or scenes of `side` x `side` pixels, in the order
    of the archive.

    Args:
        label: maps the name of a class to its number; raises TransductError for an unknown one.

    Raises:
        TransductError: a file is missing or damaged, or a picture or its line is broken and the
            policy is to stop.
    """
    if source.collage is not None:
        low, high = source.collage.photographs
        no_boxes = np.empty((0, 4), np.float32)
        for name, content in read_members(root / source.images, ENDINGS):
            if low <= _hash(name) < high:
                with refused.each(), placing(f"{source.images}: {name}"):
                    folder = Path(name).parent.name
                    require(
                        folder,
                        "found no label for it; put it into a folder that is named by its label",
                    )
                    picture = fitted(read_picture(content(), None), PHOTOGRAPH)
                    yield Example(picture, no_boxes, np.array([label(folder)], np.int64))
        return
    lines = read_boxes(source, root, refused)
    for name, content in read_members(root / source.images, ENDINGS):
        with refused.each(), placing(f"{source.images}: {name}"):
            require(
                name in lines,
                f"found no line for it in {source.boxes}; write one, if with no boxes",
            )
            line = lines.pop(name)
            if line is None:  # refused and counted already
                continue
            number, boxes, labels = line
            picture = read_picture(content(), None)
            with placing(f"{source.boxes}:{number}: {name}"):
                boxes, clipped = _scaled(boxes, picture, side)
                # Labels come last: training adds new ones as they occur, but not those of a
                # refused line.
                classes = np.array([label(each) for each in labels], np.int64)
            refused.trimmed += [f"{source.boxes}:{number}: {name}: {box}" for box in clipped]
            yield Example(resized(picture, side, side), boxes, classes)
    for name, line in lines.items():
        if line is not None:
            with refused.each(), placing(f"{source.boxes}:{line[0]}: {name}"):
                raise TransductError(
                    f"found boxes without their picture in {source.images}; add the picture, or "
                    "remove the line"
                )


def _hash(name: str) -> float:
    """A hash of a name, in [0, 1)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "little") / 2**48


def _scaled(boxes: np.ndarray, picture: Picture, side: int) -> tuple[np.ndarray, list[str]]:
    """Boxes scaled as their picture becomes a square, and clipped to it; also those of which more
    than one pixel was cut off, which is more than rounding explains."""
    height, width = picture.shape[:2]
    size, area = np.array([width, height, width, height], np.float64), f"{width} x {height}"
    kept, clipped = boxes.clip(0, size), []
    for box, inside in zip(boxes.tolist(), kept):
        corners = "expected [x0, y0, x1, y1] with x0 < x1 and y0 < y1"
        require(box[0] < box[2] and box[1] < box[3], f"box {box} has no area, {corners}")
        require(
            inside[0] < inside[2] and inside[1] < inside[3],
            f"box {box} lies outside the picture, which is {area}; correct the box",
        )
        if np.abs(inside - box).max() > 1.0:
            clipped.append(f"box {box}, of a picture of {area}")
    return (kept * (side / size)).astype(np.float32), clipped


Line = tuple[int, np.ndarray, list[str]]  # its number, boxes (A, 4), labels


def read_boxes(source: SceneSource, root: Path, refused: Refused) -> dict[str, Line | None]:
    """The boxes and labels of each picture by its name; None if its line was refused."""
    assert source.boxes is not None
    lines: dict[str, Line | None] = {}
    one_value = TransductError(
        "found one JSON value for all pictures, as in a COCO file; expected a line for each "
        'picture: {"file": name, "boxes": [[x0, y0, x1, y1], ..], "labels": [name, ..]}; write '
        "that, with x1 = x0 + width and y1 = y0 + height",
        file=source.boxes,
        line=1,
    )
    try:
        for number, text in numbered(read_lines(root / source.boxes, strict=False)):
            if number == 1 and _is_one_value(text):
                raise one_value
            with refused.each(), placing(source.boxes, number):
                line = _parsed(text)
                name = composed(line["file"])
                if before := lines.get(name):
                    problem = f"'{name}' has a line already, {before[0]}; keep one of them"
                    raise TransductError(problem)
                lines[name] = None
                lines[name] = number, *_objects(line)
    except LongLine as error:
        raise (error if lines else one_value) from error
    return lines


def _is_one_value(first: str) -> bool:
    """Whether a file is a single JSON value, such as COCO's, by its first line."""
    found = first.strip() in ("{", "[")
    with suppress(ValueError, RecursionError):
        content = json.loads(first)
        coco = isinstance(content, dict) and {"annotations", "images"} & content.keys()
        found = isinstance(content, list) or bool(coco)
    return found


LINE = 'expected {"file": .., "boxes": [..], "labels": [..]}'
DAMAGE = (ValueError, TypeError, OverflowError, RecursionError)  # of a line in another form


def _parsed(text: str) -> dict[str, Any]:
    with rewording(DAMAGE, f"not a line of JSON ({{error}}), {LINE}; fix it"):
        line = json.loads(text)
    require(
        isinstance(line, dict) and isinstance(line.get("file"), str),
        f"{LINE}, the first a name; fix the line",
    )
    check_text(line["file"])
    return dict(line)


def _objects(line: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    with (
        rewording(DAMAGE, f"{LINE} ({{error}}); fix the line"),
        rewording(KeyError, f"no key {{error}} in it, {LINE}; fix the line"),
    ):
        boxes, labels = np.array(line["boxes"], np.float64), line["labels"]
        words = isinstance(labels, list) and all(
            isinstance(each, str) and each.strip() for each in labels
        )
        numbers = all(type(number) in (int, float) for box in line["boxes"] for number in box)
        shape = boxes.shape if len(labels) else (0, 4)
        fit = shape == (len(labels), 4) and boxes.size == 4 * len(labels)
        right = words and numbers and fit and np.isfinite(boxes).all()
    expected = f"{line['file']}: expected a label, a word, for each box, four numbers"
    require(right, f"{expected}; fix the line")
    check_text("".join(labels))
    return boxes.reshape(-1, 4), [composed(label.strip()) for label in labels]


def packed(example: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An example as a row of a `Corpus`: pixels, boxes, labels."""
    return (
        pack(example.picture),
        example.boxes.astype(np.float32).view(np.int32).ravel(),
        example.labels,
    )


class Scenes:
    """The training scenes of an epoch by number, source after source.

    Args:
        corpus: rows made by `packed`; its `weights` are the spans of the sources.
        flip: whether scenes are mirrored half of the time.
    """

    def __init__(
        self, corpus: Corpus, sources: Sequence[SceneSource], side: int, seed: int, flip: bool
    ) -> None:
        self.corpus, self.sources = corpus, sources
        self.side, self.seed, self.flip = side, seed, flip
        spans = [(start, stop) for start, stop, _ in corpus.weights]
        counts = [
            s.collage.count if s.collage else stop - start
            for s, (start, stop) in zip(sources, spans)
        ]
        self._spans, self._ends = spans, np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def scene(self, number: int, epoch: int) -> Example:
        """A scene of an epoch."""
        place = int(np.searchsorted(self._ends, number, side="right"))
        collage, (start, stop) = self.sources[place].collage, self._spans[place]
        if collage is None:
            first = int(self._ends[place - 1]) if place else 0
            example = self._row(start + number - first, self.side)
        else:
            random = generator(self.seed, epoch if collage.fresh else 0, number)
            example = find_corpus("collage", SceneCorpus).paint(
                lambda i: self._row(start + i, PHOTOGRAPH), stop - start, collage, self.side, random
            )
        # drawn anew each epoch even if not fresh
        if self.flip and generator(self.seed + 1, epoch, number).random() < 0.5:
            return flipped(example)
        return example

    def _row(self, row: int, side: int) -> Example:
        (pixels, _), (boxes, _), (labels, _) = self.corpus.columns(np.array([row]))
        picture = unpack(pixels, 3 * side * side).reshape(side, side, 3)
        return Example(picture, boxes.astype(np.int32).view(np.float32).reshape(-1, 4), labels)


def read_scenes(
    source: SceneSource, root: Path, side: int, label: Callable[[str], int], refused: Refused
) -> list[Example]:
    """The scenes of a corpus for evaluation, always the same."""
    rows = list(read_examples(source, root, side, label, refused))
    images = str(root / source.images)
    require(rows, "found no picture to measure on; give one that holds some", file=images)
    if source.collage is None:
        return rows
    collage, paint = source.collage, find_corpus("collage", SceneCorpus).paint
    return [
        paint(rows.__getitem__, len(rows), collage, side, generator(FIXED, 0, n))
        for n in range(collage.count)
    ]


def generator(seed: int, epoch: int, number: int) -> np.random.Generator:
    """The random generator of an example."""
    return np.random.Generator(philox(seed, (epoch << 32) + number))


def flipped(scene: Example) -> Example:
    """The scene mirrored, left to right."""
    boxes = scene.boxes.copy()
    boxes[:, [0, 2]] = scene.picture.shape[1] - scene.boxes[:, [2, 0]]
    return Example(np.ascontiguousarray(scene.picture[:, ::-1]), boxes, scene.labels)
