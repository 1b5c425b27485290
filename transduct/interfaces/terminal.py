"""Reading text line by line from a file, stdin or a terminal; printing scores as a table; where
pictures of answers go.

Importing this does not import torch: `interfaces.program.load` does so faster.
"""

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from transduct.errors import MissingExtra, TransductError, no_model, require, rewording

if TYPE_CHECKING:
    from transduct.formats.documents import Document
    from transduct.predictors.base import Predictor, Report

# Inputs answered together: few at first, so that the first answer is soon there, then twice as many
# each time, up to these.
FIRST_LINES, LINES_AT_ONCE, FILES_AT_ONCE = 16, 4096, 64


class Piped:
    """A stream that knows whether a line is available, so that a program that writes one line and
    waits is answered.

    Attributes:
        lines: how many lines have been read.
    """

    def __init__(self, stream: Any) -> None:  # binary and buffered, as that of stdin is
        self.stream, self.name, self.lines, self.ended = stream, "stdin", 0, False
        self._first = b""

    def start(self, size: int) -> bytes:
        """What arrives first, which is still read."""
        self._first, self.lines = self.read(size), 0
        return self._first

    def read(self, size: int) -> bytes:
        """Wait for input and return what is available, at most `size` bytes; empty at the end."""
        content: bytes = self._first or self.stream.read1(size)
        self._first = b""
        self.lines, self.ended = self.lines + content.count(b"\n"), not content
        return content

    def has(self, line: int) -> bool:
        """Whether the line of this number, counted from 0, or the end of the stream is available
        without waiting."""
        if line < self.lines or self.ended:
            return True
        try:
            return bool(select.select([self.stream], [], [], 0)[0])
        except (OSError, ValueError):  # the stream has no file descriptor
            return True


def require_text(file: Path | None) -> Path | None:
    """Check that a text file can be read, before a model is loaded for it; returns None for stdin,
    which "-" names too.

    Raises:
        TransductError: if it is a folder or does not exist.
    """
    if file is None or str(file) == "-":
        return None
    file = _as_stored(file)
    if file.is_dir() or not file.exists():
        what = "a folder" if file.is_dir() else "no such file"
        raise TransductError(f"{file}: {what}; give a text file, or none for stdin")
    return file


def of_many_files(given: dict[str, Any], inputs: Sequence[str]) -> bool:
    """Whether a call is of many files.

    Args:
        given: the options of `options.Bulk` that the call sets.
        inputs: its files, folders or patterns.

    Raises:
        TransductError: it seems to be, but names no folder for the results.
    """
    if given.get("out"):
        return True
    many = len(inputs) > 1 or any(Path(each).is_dir() or "*" in each for each in inputs)
    if given or many:
        what = "several files" if many else f"--{next(iter(given)).replace('_', '-')}"
        raise TransductError(f"found {what} and no folder for the results; give --out DIR")
    return False


def is_one_document(given: dict[str, Any], inputs: Sequence[str]) -> bool:
    """Whether a call names one document and the file for its translation, which end alike.

    Args:
        given: the options of `cli.Bulk` that the call sets.

    Raises:
        TransductError: they are documents of two kinds.
    """
    if len(inputs) != 1 or [*given] != ["out"] or given["out"].is_dir():
        return False
    from transduct.data.lines import named_kind

    kind, made = named_kind(inputs[0]), named_kind(str(given["out"]))
    require(
        not (kind and made) or kind == made,
        f"{given['out']}: a document keeps its kind; end the name in {kind}, or give a folder",
    )
    return bool(kind and made)


def is_picture(given: dict[str, Any], inputs: Sequence[str]) -> bool:
    """Whether a call names a picture for its answers, and no folder for those of many files.

    Args:
        given: the options of `options.Bulk` that the call sets.
    """
    if [*given] != ["out"] or not given["out"].suffix or given["out"].is_dir():
        return False
    from transduct.data.images import ENDINGS

    files = any("*" in each or os.path.exists(each) for each in inputs)
    return given["out"].suffix.lower() in ENDINGS or not files


def document(
    file: Path | None,
    piped: Piped | None,
    of_lines: bool,
    out: Path | None,
    options: dict[str, Any],
) -> "Document | None":
    """A document to be translated as a whole, or None if the input is lines of text.

    Args:
        of_lines: whether something is asked for that only lines have.
        out: where its translation goes.
        options: of the call; the languages among them tell those of a file of two.

    Raises:
        TransductError: it has another structure or encoding, or is asked for as lines.
    """
    from io import BytesIO

    from transduct.data.lines import (
        MARKDOWN,
        PACKED,
        START,
        TRANSLATED,
        kind_of,
        named_kind,
        opened,
        read_lines,
        refuse,
    )

    name = str(file or "stdin")
    if out is not None or named_kind(name) == MARKDOWN:
        kind = named_kind(name)
    elif file is None:
        kind = kind_of(None, piped.start(START)) if piped else ""
    elif file.is_file():
        with file.open("rb") if named_kind(name) in PACKED else opened(file) as stream:
            kind = kind_of(file.name, stream.read(START))
    else:
        kind = ""
    if kind not in TRANSLATED and out is None:
        refuse(name, kind, "; or read it as lines with --text")
        return None
    from transduct.formats.documents import Document, encoding_of

    require(
        not of_lines,
        "a document comes back whole; leave out --n-best, --scores, --prefixes and "
        "--attention, or read it as lines with --text",
        file=name,
    )
    if file is None:
        assert piped is not None
        data = b"".join(iter(lambda: piped.read(1 << 20), b""))
    elif kind in PACKED:
        require(out or not sys.stdout.isatty(), "is no text; add --out FILE", file=name)
        data = file.read_bytes()
    else:
        with opened(file) as stream:
            data = stream.read()
    if kind not in PACKED and encoding_of(kind, data) == "utf-8":
        for _ in read_lines(file or BytesIO(data)):
            pass  # says what is not UTF-8
    languages = options.get("source_language", ""), options.get("target_language", "")
    return Document(kind, name, data, languages)


def write_document(content: bytes, out: Path | None) -> None:
    """Write a document to a file, or to stdout.

    Raises:
        TransductError: the file cannot be written.
    """
    from transduct.storage import write_file

    if out:
        write_file(out, content)
    else:
        sys.stdout.buffer.write(content)


def chunks(
    model: str, file: Path | None, prefixes: Path | None = None, piped: Piped | None = None
) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """Read a file, or stdin as lines arrive, in chunks: (index of the first line, lines, their
    lines of `prefixes`).

    Reports on stderr how many lines were not UTF-8, and a file without lines.

    Raises:
        TransductError: if a file cannot be read, or `prefixes` does not have as many lines as the
            text.
    """
    from transduct.predictors.base import predictor_class

    broken: list[int] = []
    broken_prefixes: list[int] = []
    piped = piped or (Piped(sys.stdin.buffer) if file is None else None)
    read = predictor_class(model).readable_lines
    lines = read(file or cast(BinaryIO, piped), broken)
    begun = None if prefixes is None else list(read(prefixes, broken_prefixes))
    number = 0
    unreadable: TransductError | None = None
    size = FIRST_LINES
    while unreadable is None:
        chunk: list[str] = []
        try:
            chunk.extend(_at_once(lines, number, piped, min(size, LINES_AT_ONCE)))
        except TransductError as error:
            # raised once what came before it is answered
            unreadable = error
        if not chunk:
            break
        size *= 2
        starts = None if begun is None else begun[number : number + len(chunk)]
        number += len(chunk)
        if begun is not None and number > len(begun):
            raise TransductError(f"{prefixes}: {_unequal(len(begun), 'more')}")
        yield number - len(chunk), chunk, starts
    if unreadable is not None:
        raise unreadable
    if begun is not None and number < len(begun):
        raise TransductError(f"{prefixes}: {_unequal(len(begun), str(number))}")
    if file is not None and not number:
        print(f"transduct: warning: {file}: nothing in it", file=sys.stderr)
    report_broken_lines(prefixes, broken_prefixes)
    report_broken_lines(file or "stdin", broken)


def report_broken_lines(name: Path | str | None, numbers: Sequence[int]) -> None:
    """Say on stderr which lines of a file were not UTF-8, if any."""
    if numbers:
        rest = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        print(
            f"transduct: {name}:{numbers[0]}: not UTF-8{rest}; such bytes were read as U+FFFD",
            file=sys.stderr,
        )


def _at_once(lines: Iterator[str], number: int, piped: Piped | None, most: int) -> Iterator[str]:
    """The next lines: up to `most`, or those available without waiting."""
    for taken, line in zip(range(1, most + 1), lines):
        yield line
        if piped and not piped.has(number + taken):
            return


Named = tuple[str, Any]  # an input, after what errors call it


def inputs_in_groups(
    model: "Predictor", words: Sequence[str], as_text: bool
) -> Iterator[list[Named]]:
    """The inputs that arguments give, in groups to be answered together: first one, then more.

    For a model over text, an argument that names a file gives its lines, and "-" those of stdin,
    whatever has arrived. Any other is a text, and so is every one if `as_text`.

    Raises:
        TransductError: a file cannot be read, or holds no text.
    """
    group: list[Named] = []
    size, most = 1, LINES_AT_ONCE if model.reads == "text" else FILES_AT_ONCE
    for place, word in enumerate(words, 1):
        of_lines = model.reads == "text" and not as_text and (word == "-" or _names_file(word))
        piped = Piped(sys.stdin.buffer) if of_lines and word == "-" else None
        broken: list[int] = []
        if of_lines:
            lines = model.readable_lines(cast(BinaryIO, piped) if piped else Path(word), broken)
            name = "stdin" if piped else word
            given: Iterable[Named] = ((f"{name}:{n}", line) for n, line in enumerate(lines, 1))
        else:
            given = [(f"input {place}", read_once(model, word))]
        try:
            for number, each in enumerate(given, 1):
                group.append(each)
                if len(group) >= size or (piped and not piped.has(number)):
                    yield group
                    group, size = [], min(2 * size, most)
        except TransductError:  # once what came before it is answered
            if group:
                yield group
            raise
        report_broken_lines(name if of_lines else None, broken)
    if group:
        yield group


def inputs_and_places(
    model: "Predictor",
    words: Sequence[str],
    as_text: bool,
    out: Path | None,
    attention: Path | None,
) -> tuple[Iterator[list[Named]], list[Path]]:
    """The inputs that arguments give, in groups, and the place of the picture of each answer; if
    there are pictures, all inputs are read first, so that no place is found wrong later.

    Raises:
        TransductError: as `inputs_in_groups` and `places`.
    """
    groups = inputs_in_groups(model, words, as_text)
    if out is None and attention is None:
        return groups, []
    from transduct.predictors.isolation import growing

    whole = [each for group in groups for each in group]
    return growing(whole, FILES_AT_ONCE), places(model, words, out, attention, len(whole))


def _as_stored(path: Path) -> Path:
    """A path as the disk spells it; see `stored`, which is imported where it matters."""
    if str(path).isascii():
        return path
    from transduct.data.lines import stored

    return stored(path)


def _names_file(word: str) -> bool:
    """Whether an argument names something with lines: a file, or a pipe that the shell made."""
    path = _as_stored(Path(word))
    return os.path.exists(path) and not os.path.isdir(path)


def answered(
    groups: Iterable[list[Named]], work: Callable[[list[Any]], Sequence[Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Each input, after its name, with its answer or the error that concerns it alone: in order,
    and as soon as those of its group are known.

    Raises:
        MissingExtra: what is missing is of no input.
    """
    from transduct.predictors.isolation import isolate_failures

    for group in groups:
        outputs = isolate_failures(work, [given for _, given in group])
        for (name, given), output in zip(group, outputs, strict=True):
            if isinstance(output, MissingExtra):
                raise output
            yield name, given, output


class Answers:
    """Prints answers as they come, one a line. An error leaves its line empty, or is an object, and
    is told on stderr.

    Args:
        what: what they answer.
        key: what JSON calls an answer; None to print no JSON.
    """

    def __init__(self, what: str, key: str | None = None) -> None:
        self.what, self.key, self.count, self.failed = what, key, 0, 0

    def show(
        self, name: str, answer: Any, line: Callable[[Any], str], value: Callable[[Any], Any]
    ) -> bool:
        """Print the answer of the input that errors call `name`, as a line or as a value of JSON;
        returns whether it is one."""
        import json

        self.count += 1
        wrong = isinstance(answer, TransductError)
        self.failed += wrong
        if self.key is not None:
            shown = {"error": str(answer)} if wrong else {self.key: value(answer)}
            print(json.dumps(shown, ensure_ascii=False), flush=True)
        else:
            print("" if wrong else line(answer), flush=True)
        if wrong:
            # which the error may know by another number
            print(f"transduct: {name}: {answer.at(input=None)}", file=sys.stderr, flush=True)
        return not wrong

    def end(self) -> None:
        """End with status 1, and say how many failed, if any did."""
        if self.failed:
            failed = f"{self.failed} of {self.count} {self.what} failed; see above"
            print(f"transduct: {failed}", file=sys.stderr)
            raise SystemExit(1)


@contextmanager
def naming_lines(prefixes: Path | None, first: int) -> Iterator[None]:
    """Within this, an error about a prefix of a chunk gets the file and line number; `first` lines
    come before the chunk."""
    try:
        yield
    except TransductError as error:
        if prefixes is None or error.input is None or error.unit != "prefix":
            raise
        line = first + error.input + 1
        raise error.at(input=None, file=str(prefixes), line=line) from error


def _unequal(found: int, expected: str) -> str:
    return (
        f"found {found} lines, the text has {expected}; give a line for each, empty where "
        "anything may come"
    )


def terms(glossary: Path | None) -> dict[str, Any]:
    """The option that a file of a glossary stands for."""
    if glossary is None:
        return {}
    from transduct.predictors.terms import read_glossary

    return {"glossary": read_glossary(glossary)}


def rows(translations: Sequence[Any], first: int, n_best: int, scores: bool) -> Iterator[str]:
    """The lines to print for the translations of some lines, of which the first has the number
    `first`, from 0; what they should hold and do not is said on stderr."""
    for number, found in enumerate(translations, first + 1):
        if found.lost:
            print(f"line {number}: the translation lacks {', '.join(found.lost)}", file=sys.stderr)
        if n_best > 1:
            yield from (f"{number}\t{each.score:.6f}\t{each.text}" for each in found.alternatives)
        else:
            yield f"{found.score:.6f}\t{found.text}" if scores else found.text


@contextmanager
def counting(wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Context manager that shows on stderr how many lines are done, if stderr is a terminal and
    stdout is not. Yields the function to call with the number of lines done since its last call."""
    if not wanted or sys.stdout.isatty() or not sys.stderr.isatty():
        yield lambda _: None
        return
    from transduct.interfaces.progress import count_lines

    with count_lines() as done:
        yield done


def require_present(model: str, other: str | None = None, files: Sequence[str | None] = ()) -> None:
    """Say at once that a model or a file is missing. Whoever reads it would say the same, but only
    after PyTorch is imported, which takes a second or more; where it is, this says nothing.

    Raises:
        TransductError: one is missing, or two files are stdin.
    """
    require(
        files.count("-") <= 1, "found - twice; stdin holds one of them, give the other as a file"
    )
    if "torch" in sys.modules:
        return
    for name in filter(None, (model, other)):
        if not os.path.isdir(directory := _as_stored(Path(os.path.expanduser(name)))):
            raise no_model(directory)
    for name in filter(None, files):
        if name != "-" and not os.path.exists(_as_stored(Path(os.path.expanduser(name)))):
            from transduct.data.lines import NO_FILE

            raise TransductError(f"{name}: {NO_FILE}")


def require_folders(*paths: Path | None) -> None:
    """Check, before the work, that its output can be written to these files.

    Raises:
        TransductError: there is no folder for it, or nothing can be written there.
    """
    for path in filter(None, paths):
        require(
            path.parent.is_dir(),
            f"{path}: there is no folder {path.parent}; make it, or give another file",
        )
        require_place(path)


def require_place(path: Path) -> None:
    """Check, before the work, that a file or a folder can be made, with the folders above it.

    Raises:
        TransductError: nothing can be written there.
    """
    above = next(each for each in path.absolute().parents if each.exists())
    with rewording(OSError, "cannot be written ({error}); choose another place", file=str(path)):
        TemporaryFile(dir=above).close()


def check_output(path: Path | None, inputs: Iterable[str | None] = ()) -> None:
    """Check, before the work, that its output can be written to a file.

    Raises:
        TransductError: there is no folder for it, nothing can be written there, it is a folder, a
            pipe or a device, or one of the inputs.
    """
    if path is not None and os.path.realpath(path) in {
        os.path.realpath(each) for each in inputs if each
    }:
        raise TransductError(f"{path}: this is an input; write to another file")
    require_folders(path)
    require(
        path is None or path.is_file() or not path.exists(),
        f"{path}: not a regular file; give another",
    )


def check_drawable(
    model: "Predictor", name: str, path: Path | None, attention: Path | None = None
) -> None:
    """Check, before a model answers, that its pictures can be written to `path` and `attention`.

    Raises:
        TransductError: there is a path but the model answers in text, there is none but it answers
            in pictures, the path does not end in a picture format, or its attention is asked for
            but it has none.
    """
    require(
        attention is None or model.attention_names,
        f"{name}: this model has no attention to show; omit --attention",
    )
    if path is None:
        require(
            not model.paints,
            f"{name}: this model answers with pictures; say where to draw them with --out FILE.png",
        )
        return
    require(
        "picture" in model.verbs,
        f"{name}: this model answers in text, which has no picture; omit --out",
    )
    from transduct.data.images import check_ending

    check_ending(path)


def places(
    model: "Predictor",
    words: Sequence[str],
    out: Path | None,
    attention: Path | None,
    count: int | None = None,
) -> list[Path]:
    """The paths of the pictures of all answers: `out`, numbered if there are several inputs; of the
    arguments `words`, unless they give another `count` of inputs.

    Raises:
        TransductError: one of them, or `attention`, is an input file or used twice.
    """
    count = len(words) if count is None else count
    numbered = [out.with_stem(f"{out.stem}_{i}") for i in range(1, count + 1)] if out else []
    pictures = [out] if out and count == 1 else numbered
    files = (word for word in words if model.reads != "text" or _names_file(word))
    taken = set(map(os.path.realpath, files))
    for path in [*pictures, *([attention] if attention else [])]:
        if (place := os.path.realpath(path)) in taken:
            raise TransductError(
                f"{path}: this is an input, or another picture's place; draw to another"
            )
        taken.add(place)
    return pictures


def read_once(model: "Predictor", given: str) -> Any:
    """Turn a command-line argument into a model's input: a text, a file name, or the content of a
    pipe, which may be stdin ("-").

    A pipe can be read only once, but drawing the answer or the attention reads the input again.
    """
    from transduct.data.lines import readable

    if model.reads == "text":
        return readable(given)
    if given == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(given).read_bytes() if Path(given).is_fifo() else given
    except OSError:  # reported when the model reads it
        return given


def write_outputs(outputs: Iterable[object], path: Path) -> None:
    """Write a model's answers to a file, one per line.

    Raises:
        TransductError: there are none that are text, or the file cannot be written.
    """
    from transduct.storage import write_file

    lines = [str(output).replace("\n", " ") for output in outputs]
    require(lines, f"{path}: this model gives no answers as text to write; leave --out out")
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def table(report: "Report") -> Iterator[str]:
    """One line per score, with its interval, the other model's score, the p-value and the signature
    where known."""
    p_values, others = report.details.get("p_values", {}), report.details.get("against", {})
    for name, value in report.scores.items():
        details = report.details.get(name, {})
        interval = (
            "  [{}, {}]".format(*map(_digits, details["interval"])) if "interval" in details else ""
        )
        rest = f"  against {_digits(others[name])}" if name in others else ""
        rest += f"  p = {p_values[name]:.4f}" if name in p_values else ""
        yield (
            f"{name:18} {_digits(value):>7}{interval}{rest}  {details.get('signature', '')}"
        ).rstrip()
    if left_out := sum(report.details.get("left_out", {}).values()):
        yield f"{'left_out':18} {left_out:>7}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def typed() -> Iterator[tuple[int, list[str], None]]:
    """Like `chunks`, one line at a time from a terminal."""
    from transduct.data.lines import readable

    print("Write a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    edited = sys.stdin.isatty() and sys.stdout.isatty()  # else `input` knows no arrow keys
    if edited:
        with suppress(ImportError):  # not everywhere
            import readline  # noqa: F401 (changes `input`)
    for number in count():
        try:
            if not edited:
                print("> ", end="", file=sys.stderr, flush=True)
            line = input("> " if edited else "")
            if (text := readable(line)) != line:
                print("transduct: not UTF-8; such bytes were read as U+FFFD", file=sys.stderr)
            yield number, [text], None
        except EOFError:
            return
