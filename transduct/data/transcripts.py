"""Transcripts of recordings, in tables as Common Voice, LJSpeech and Kaldi write them, and the row
of each recording.

A row names its file with or without folders, and with any ending or none.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple

from transduct.data.files import NAMED, Refused
from transduct.data.lines import composed, numbered, read_lines, readable
from transduct.data.tables import column_of, csv_cells
from transduct.errors import TransductError, require

# what headers of such tables call file, text and speaker; the first name that is there is taken
FILE = (
    *("path", "file", "file_name", "filename", "audio", "audio_file", "audio_filepath", "wav"),
    *("wav_filename", "audio_path", "sound", "recording", "utterance_id", "utt_id", "id"),
)
TEXT = (
    *("normalized_text", "normalized_transcription", "normalized", "sentence", "transcript"),
    *("transcription", "text"),
)
SPEAKER = ("client_id", "speaker", "speaker_id", "speaker_name")
ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".sph", ".aac")
BETWEEN = {"\t": "tabs", "|": "bars", ",": "commas", " ": "a blank"}


class Transcript(NamedTuple):
    """A row: the number of its line, the text, or None if the row was refused, and the speaker."""

    line: int
    text: str | None
    speaker: str = ""


class Transcripts:
    """The rows of a table by the names in it, and which recording each belongs to.

    Args:
        columns: those of file, text and, if known, speaker, by name or number; None to find them.

    Raises:
        TransductError: the header lacks a name, or the policy is to stop and a row lacks a text,
            names a file again or has an empty text.
    """

    def __init__(
        self, path: Path, columns: Sequence[str] | Sequence[int] | None, refused: Refused
    ) -> None:
        self.path, self.rows = path, dict[str, Transcript]()
        self.recordings: dict[str, str] = {}  # of the rows found so far
        self._by_stem = defaultdict[str, list[str]](list)
        mark, rows = _cells(path, read_lines(path, strict=refused.policy == "stop"))
        places, most, rows = _places(path, mark, rows, columns)
        for number, cells in rows:
            with refused.each():
                self._add(number, cells, mark, places, most)
        for name in self.rows:
            self._by_stem[_parts(name)[-1]].append(name)

    def _add(
        self, number: int, cells: list[str], mark: str, places: Sequence[int], most: float
    ) -> None:
        row, name = mark.join(cells), composed(readable(cells[places[0]] if cells else ""))
        here = TransductError("", file=str(self.path), line=number)
        if readable(row) != row:
            self.rows.setdefault(name, Transcript(number, None))
            raise here.adding("not UTF-8; write the line again in UTF-8")
        if not max(places[0], places[1], 1) < len(cells) <= most:
            raise here.adding(
                f"found {row!r:.60}, expected file, text and, if known, speaker with "
                f"{BETWEEN[mark]} between; fix the line or set columns"
            )
        if name in self.rows:
            raise here.adding(f"'{name}' has a text already; keep one of them")
        self.rows[name] = Transcript(number, None)  # until the text is checked
        if not cells[places[1]].strip():
            raise here.adding(f"the text of '{name}' is empty; write one")
        speaker = cells[places[2]].strip() if len(cells) > places[2] >= 0 else ""
        self.rows[name] = Transcript(number, cells[places[1]], composed(speaker))

    def find(self, name: str, folder: Path) -> Transcript | None:
        """The row of a recording in a folder or archive: of its own name, or else without endings
        and as far as either names folders. None if there is none.

        Raises:
            TransductError: several rows could be its, or its row is that of another recording.
        """
        found = name if name in self.rows else self._similar(name, folder)
        if found is None:
            return None
        require(
            (other := self.recordings.setdefault(found, name)) == name,
            f"'{other}' and '{name}' have one row in {self.path.name}, '{found}'; write the "
            "folders into the rows",
            file=str(folder),
        )
        return self.rows[found]

    def _similar(self, name: str, folder: Path) -> str | None:
        inner = _parts(name)
        whole = (*folder.resolve().parts, *inner)
        rows = {row: _parts(row) for row in self._by_stem.get(inner[-1], ())}
        inside = [row for row, parts in rows.items() if whole[-len(parts) :] == parts]
        if inside:
            return max(inside, key=lambda row: len(rows[row]))
        around = [row for row, parts in rows.items() if parts[-len(inner) :] == inner]
        if len(around) > 1:
            raise TransductError(
                f"'{name}' may be '{around[0]}' or '{around[1]}' of {self.path.name}; give the "
                "folder above as sounds",
                file=str(folder),
            )
        return around[0] if around else None

    def nearest(self, name: str) -> str:
        """What to report of the row whose name is most like that of a recording."""
        near = get_close_matches(_parts(name)[-1], self._by_stem, 1, 0.0)
        if not near:
            return ""
        row = self._by_stem[near[0]][0]
        return f" (the nearest row is '{row}', line {self.rows[row].line})"

    def missing(self) -> list[str]:
        """The rows with a text whose recordings were not found."""
        return sorted(
            row for row in self.rows.keys() - self.recordings.keys() if self.rows[row].text
        )


def _cells(path: Path, lines: Iterator[str]) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """What stands between the columns of a table, and the cells of each line with its number."""
    first, name = next(lines, ""), path.name.lower()
    lines = chain([first], lines)
    require(
        first.lstrip()[:1] not in ("{", "["),
        "found JSON, expected a table; write a line for each recording: file, tab, text",
        file=str(path),
    )
    if "\t" not in first and "|" not in first and ".csv" in name:
        return ",", csv_cells(path, lines)
    mark = "\t" if "\t" in first or ".tsv" in name else "|" if "|" in first else " "
    # Kaldi's rows are an id and what follows the first blank
    splits = 1 if mark == " " else -1
    return mark, ((number, line.split(mark, splits)) for number, line in numbered(lines))


def _places(
    path: Path,
    mark: str,
    rows: Iterator[tuple[int, list[str]]],
    columns: Sequence[str] | Sequence[int] | None,
) -> tuple[list[int], float, Iterator[tuple[int, list[str]]]]:
    """The places of file, text and speaker (-1 if there is none), the most cells of a row, and the
    rows without a header."""
    first = next(rows, (1, [""]))
    header = [composed(readable(cell)).strip() for cell in first[1]]
    titles = [title.lower() for title in header]
    found = [
        next((titles.index(each) for each in names if each in titles), -1)
        for names in (FILE, TEXT, SPEAKER)
    ]
    headed = -1 not in found[:2]
    if columns is None and headed:
        return found, inf, rows
    if columns is None:
        # the last of LJSpeech's columns has numbers and abbreviations in words
        places = [0, len(header) - 1 if mark == "|" else 1, -1 if mark == "|" else 2]
        return places, 3, chain([first], rows)
    places = [
        column if isinstance(column, int) else column_of(header, column, file=str(path), line=1)
        for column in columns
    ]
    named = headed or isinstance(columns[0], str)
    return [*places, -1][:3], inf, rows if named else chain([first], rows)


def _parts(name: str) -> tuple[str, ...]:
    """The folders and the name of a file, without the ending of a sound."""
    *folders, last = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")] or [""]
    stem, _, ending = last.rpartition(".")
    return (*folders, stem if stem and f".{ending.lower()}" in ENDINGS else last)


def unlisted(table: Transcripts, name: str, refused: Refused) -> TransductError:
    """The error of a recording without a row; only those that are shown name the nearest row."""
    near = table.nearest(name) if len(refused.errors) < NAMED else ""
    return TransductError(f"has no text in {table.path.name}{near}; write its line", file=name)
