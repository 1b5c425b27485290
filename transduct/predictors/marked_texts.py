"""Translation of texts with tags: a model reads them without, and attention says where the tags
stand in what it writes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from transduct.errors import require
from transduct.formats.marked import Link, Mark, Segment, placed, plain
from transduct.formats.markup import Document, Markup, document
from transduct.predictors.isolation import of_input
from transduct.predictors.long_texts import Piece, Plan, Translation, spans_of
from transduct.predictors.long_texts import assemble as joined
from transduct.predictors.options import check_inputs

FORMATS = ("text", "html", "xml", "marked")


def plan_of(
    translator: Any, texts: Sequence[Any], markup: str | Markup, n_best: int, options: Any
) -> Plan:
    """The plan of translating the segments of some documents.

    Args:
        markup: html, xml, a `Markup`, or "marked" if each text is a segment.

    Raises:
        TransductError: as `Translator.plan`, or XML is not well-formed.
    """
    require(
        markup in FORMATS or isinstance(markup, Markup),
        f"format is {markup!r:.40}, expected one of: {', '.join(FORMATS[:-1])}",
    )
    if markup == "marked":
        documents = [Document([segment]) for segment in texts]
    else:
        check_inputs(texts)
        how = markup if isinstance(markup, Markup) else Markup("xml" if markup == "xml" else "html")
        documents = []
        for number, text in enumerate(texts):
            with of_input(number):
                documents.append(document(text, how))
    segments = [segment for each in documents for segment in each.segments]
    inner = translator.plan([*map(plain, segments)], n_best, **options)
    ends = [*accumulate((len(each.segments) for each in documents), initial=0)]
    bounds = [*(begin for begin, _ in inner.spans), len(inner.pieces)]
    spans = [(bounds[a], bounds[b]) for a, b in pairwise(ends)]
    return replace(inner, texts=texts, spans=spans, gaps=[], documents=documents, inner=inner)


def assembled(
    translator: Any, plan: Plan, shown: Sequence[Sequence[Translation]]
) -> list[Translation]:
    """The translation of each document, from the n-best list of each piece."""
    assert plan.inner is not None
    segments = [segment for each in plan.documents for segment in each.segments]
    ranks = []
    for rank in range(plan.n_best):
        chosen = [each[min(rank, len(each) - 1)] for each in shown]
        found = iter(_segments(translator, plan.inner, segments, chosen))
        ranks.append(
            [
                _written(each, isinstance(text, str), [next(found) for _ in each.segments])
                for text, each in zip(plan.texts, plan.documents, strict=True)
            ]
        )
    return [
        replace(
            those[0], alternatives=list({each.text: each for each in those[::-1]}.values())[::-1]
        )
        for those in zip(*ranks)
    ]


def _written(document: Document, whole: bool, found: Sequence[Translation]) -> Translation:
    """The translation of a document, from those of its segments; `whole` if it is more than
    one segment."""
    parts = [each.parts for each in found]
    text = document.written(parts) if whole else plain(parts[0])
    tokens = [token for each in found for token in each.tokens]
    score = sum(each.score for each in found)
    lost = tuple(name for each in found for name in each.lost)
    return Translation(text, score, tokens, parts=() if whole else parts[0], lost=lost)


def _segments(
    translator: Any, plan: Plan, segments: Sequence[Segment], chosen: Sequence[Translation]
) -> Iterator[Translation]:
    """The translation of each segment, with its tags."""
    tagged = [any(isinstance(part, Mark) for part in segment) for segment in segments]
    places = [n for (a, b), wanted in zip(plan.spans, tagged) if wanted for n in range(a, b)]
    sources, outputs = [plan.pieces[n].ids for n in places], [chosen[n].tokens for n in places]
    aligned = dict(zip(places, translator.alignments(sources, outputs, plan.decoding), strict=True))
    for segment, text, (a, b), gaps in zip(
        segments, plan.texts, plan.spans, plan.gaps, strict=True
    ):
        found = joined([[each] for each in chosen[a:b]], 1, 0.0, gaps)
        translation = found.text if a < b else text
        links = _links(
            translator,
            text,
            plan.pieces[a:b],
            translation,
            chosen[a:b],
            [aligned.get(n, []) for n in range(a, b)],
        )
        yield replace(found, text=translation, parts=placed(segment, translation, links))


def _links(
    translator: Any,
    text: str,
    pieces: Sequence[Piece],
    translation: str,
    chosen: Sequence[Translation],
    looks: Sequence[Sequence[int]],
) -> list[Link]:
    """Which characters of a translation come from which of its text, by what the model looked
    at."""
    ids = [token for piece in pieces for token in piece.ids]
    tokens = [token for each in chosen for token in each.tokens]
    origins = spans_of(translator.source_tokenizer.pieces(ids), text)
    spans = spans_of(translator.target_tokenizer.pieces(tokens), translation)
    starts = accumulate((len(piece.ids) for piece in pieces), initial=0)
    seen = [start + place for start, each in zip(starts, looks) for place in each]
    return [
        (span, origin)
        for span, place in zip(spans, seen)
        if span is not None and (origin := origins[place]) is not None
    ]
