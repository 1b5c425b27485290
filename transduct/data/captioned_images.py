"""Pictures with captions, from files or generated, scaled to one size: read, and prepared as a
corpus."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from transduct.data.corpus import Corpus, Ragged, build, write_rows
from transduct.data.files import (
    WORDS_AT_ONCE,
    DataSection,
    Notify,
    Policy,
    Refused,
    Weight,
)
from transduct.data.images import (
    ImageSource,
    Picture,
    Side,
    fitted,
    read_labelled,
    read_pictures,
)
from transduct.data.samples import Part, PictureCorpus, check_generated, find_corpus
from transduct.data.text import in_chunks
from transduct.errors import require
from transduct.records import Checked, Count, refuse_if

log = logging.getLogger("transduct")
# captions and (n, size, size, 3) -> columns of a corpus
Columns = Callable[[Sequence[str], np.ndarray], list[Ragged]]


@dataclass(frozen=True)
class PictureSource(Checked):
    """One corpus of pictures: files, or generated scenes.

    Attributes:
        images: a folder, or a tar archive, plain or compressed.
        captions: a file with lines of NAME, tab, TEXT; without it, the name of a picture's folder
            is its caption.
        generate: the kind of pictures to generate: scenes, or one that another package adds.
        part: the part of the generated pictures; no caption is in two of them.
        count: the number of pictures to generate.
        weight: how often an epoch shows each picture.
    """

    images: str | None = None
    captions: str | None = None
    generate: str | None = None
    part: Part = "train"
    count: Count = 0
    weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            (self.images is None) == (self.generate is None),
            "give images or generate: exactly one of them",
        )
        check_generated(self, PictureCorpus, "pictures")
        refuse_if(
            self.captions is not None and self.images is None,
            f"captions is {self.captions}; give it only with images",
        )

    def files(self) -> list[str]:
        """The files of the corpus, by their names in the recipe."""
        return [name for name in (self.images, self.captions) if name is not None]

    def read(self, data: "PicturesConfig", refused: Refused) -> Iterator[tuple[str, Picture]]:
        """Iterate over captions and pictures (size, size, 3), as the `data` section wants them;
        broken ones are refused."""
        if self.generate is not None:
            made = find_corpus(self.generate, PictureCorpus)
            yield from made.generate(self.count, self.part, data.size)
            return
        source, root = ImageSource(str(self.images), self.captions), Path(data.root)
        if data.captioned:
            for _, picture, text in read_labelled(source, root, refused):
                yield text, fitted(picture, data.size)
        else:
            for _, picture in read_pictures(source, root, refused):
                yield "", fitted(picture, data.size)


@dataclass(frozen=True)
class PicturesConfig(DataSection):
    """The `data` section of a recipe for pictures.

    Attributes:
        size: height and width in pixels; every picture is cropped to its central square and scaled
            to this size.
        broken: whether training stops at a broken picture or skips it.
    """

    # Whether captions are needed: a picture without one, or a caption without its picture, is then
    # refused.
    captioned: ClassVar[bool] = False

    train: list[PictureSource]
    valid: PictureSource | None = None
    test: PictureSource | None = None
    size: Side = 64


@dataclass(frozen=True)
class Examples:
    """Captions and their pictures, all of one size; `generated` is the kind of generated ones, and
    `left_out` says how many were broken."""

    captions: list[str]
    pictures: list[Picture]
    generated: str | None = None
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pictures)

    def part(self, numbers: Iterable[int]) -> "Examples":
        """The examples with these numbers."""
        captions, pictures = zip(*((self.captions[i], self.pictures[i]) for i in numbers))
        return replace(self, captions=[*captions], pictures=[*pictures])

    def at(self, size: int) -> "Examples":
        """The same pictures, scaled to `size` x `size` pixels."""
        return replace(self, pictures=[fitted(picture, size) for picture in self.pictures])


@dataclass(frozen=True)
class Unread:
    """Pictures in files, and their captions if any, to be read once their size is known."""

    source: PictureSource
    section: type[PicturesConfig]
    broken: Policy = "stop"

    def at(self, size: int) -> Examples:
        """Read the pictures, scaled to `size` x `size` pixels; raises like `read_examples`."""
        data = self.section([self.source], size=size, broken=self.broken)
        return read_examples(self.source, data, advise=False)


def read_examples(
    source: PictureSource,
    data: PicturesConfig,
    notify: Notify = log.warning,
    *,
    advise: bool = True,
) -> Examples:
    """Read a whole corpus into memory.

    Args:
        advise: whether errors mention `data.broken`, for files named in a recipe.

    Raises:
        TransductError: no picture is left, or as in `read_labelled`.
    """
    refused = Refused(data.broken, advise)
    examples = list(source.read(data, refused))
    name = source.images or f"the {source.part} part of {source.generate}"
    refused.report(notify, f"{name}: ")
    remedy = "check the files and data.broken" if advise else "give one that holds some"
    require(examples, f"found no picture in it; {remedy}", file=name)
    captions, pictures = map(list, zip(*examples))
    return Examples(captions, pictures, source.generate, refused.dropped)


def pictures_given(
    files_given: Mapping[str, str], section: type[PicturesConfig], broken: Policy = "stop"
) -> Unread:
    """The pictures to evaluate on from the command line: `source`, with the captions in `reference`
    if given.

    Args:
        section: the `data` section of the task.

    Raises:
        TransductError: captions are given without pictures.
    """
    require(
        "source" in files_given,
        "found --reference, captions, without their pictures; give them as --source",
    )
    source = PictureSource(files_given["source"], files_given.get("reference"))
    return Unread(source, section, broken)


def prepare(
    data: PicturesConfig, columns: Columns, inputs: dict[str, Any], directory: Path, notify: Notify
) -> Corpus:
    """Prepare the training pictures as a corpus, with columns made by `columns`, unless nothing has
    changed.

    Args:
        inputs: everything that determines the content of the corpus.

    Raises:
        TransductError: a file cannot be read, no picture is left, or as in `corpus.build`.
    """

    def fill(folder: Path) -> dict[str, Any]:
        refused = Refused(data.broken)
        sources = ((each.weight, _chunks(each.read(data, refused), columns)) for each in data.train)
        none = np.empty((0, data.size, data.size, 3), np.uint8)
        manifest = write_rows(folder, len(columns([], none)), sources)
        refused.report(notify, "training pictures: ")
        require(manifest["rows"], "no picture is left to train on; check the files and data.broken")
        notify(f"corpus prepared: {manifest['rows']:,} pictures")
        return manifest | {"dropped": refused.dropped}

    return build(directory, inputs, fill, notify)


def _chunks(examples: Iterator[tuple[str, Picture]], columns: Columns) -> Iterator[list[Ragged]]:
    for chunk in in_chunks(examples, lambda pair: pair[1].size // 4, WORDS_AT_ONCE):
        captions, pictures = zip(*chunk)
        yield columns(captions, np.stack(pictures))
