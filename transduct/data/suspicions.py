"""What looks like a mistake in a corpus before it is trained on or measured on."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from transduct.data.files import Refused
from transduct.data.lines import read_lines
from transduct.data.sources import TextSource, ending, listed
from transduct.data.text import read_rows
from transduct.errors import TransductError

# what headers of tables call their columns, besides languages
TITLES = {
    *("source", "target", "src", "tgt", "trg", "text", "texts", "label", "labels", "class"),
    *("category", "sentence", "sentence1", "sentence2", "translation", "reference", "input"),
    *("output", "premise", "hypothesis", "question", "answer", "tag", "tags", "id", "review"),
    *("sentiment", "score", "original", "translated", "document", "title", "content"),
    *("sent", "sentences", "segment", "word", "words", "mt", "comment", "rating", "stars", "line"),
    *("quelle", "ziel", "satz", "klasse", "deutsch", "englisch", "français", "anglais", "español"),
    *("inglés", "русский", "английский", "한국어", "영어", "원문", "번역", "번역문"),
    *("문장", "라벨", "日本語", "英語", "原文", "訳文", "中文", "英文", "译文"),
}


def same_text(source: Path, target: Path) -> bool:
    """Whether two files hold the same lines, up to compression; a pipe cannot be read for this, nor
    can what is no text."""
    if not (source.is_file() and target.is_file()):
        return False
    lines = zip_longest(read_lines(source, strict=False), read_lines(target, strict=False))
    try:
        return all(left == right for left, right in lines)
    except TransductError:  # reported when it is read for its content
        return False


def suspicions(source: TextSource, root: Path, labelled: bool = False) -> Iterator[str]:
    """What looks like a mistake in a corpus: both sides are the same text (a model would copy),
    or the names of the columns are read as a row. `labelled` is as for `read_rows`."""
    source = source.expanded(root)
    for left, right in zip(listed(source.source), listed(source.target)):
        if same_text(root / left, root / right):
            files = f"{root / left} and {root / right}"
            yield f"{files} hold the same text; is one of them meant to be another?"
    columns, tables = source.columns or [], listed(source.pairs)
    if len({*columns}) < len(columns):
        names = ", ".join(tables or listed(source.trees))
        yield f"{names}: columns is {columns}, which takes one twice; is another meant?"
    if any(isinstance(column, str) for column in columns):
        return
    for name in tables:
        if ending(name)[0] in (".tsv", ".csv") and (root / name).is_file():
            rows = read_rows(replace(source, pairs=name), root, labelled, Refused("skip"))
            first = next(iter(rows))
            labels = Counter(row[-1] for row in rows) if labelled else Counter[str]()
            # of labels that come again and again, this one does not
            single = labels.total() > 2 * len(labels) > 0 and not labels[first[-1]]
            if single or all(map(_is_title, first)):
                yield (
                    f"{root / name}:1: the first row ({', '.join(first)}) looks like the names of "
                    f"the columns; if it is, read them by these: columns [{', '.join(first)}], on "
                    f"the command line --columns {','.join(first)}"
                )


def _is_title(text: str) -> bool:
    """Whether a text may be the name of a column: words such as those of "source_text" and "de"."""
    from transduct.data.languages import is_language  # who translates needs no list of languages

    words = re.split(r"[_.:/-]+", text.strip().lower())  # at blanks would cut "is it"
    return is_language(text) or all(word in TITLES or is_language(word) for word in words)
