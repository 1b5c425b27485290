"""Inference for translation: translates and scores texts, with attention."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transduct import storage
from transduct.blocks.embeddings import narrowed
from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.replacements import (
    Replacement,
    changes_of,
    changes_with_placeholders,
    of_references,
    restored,
)
from transduct.data.sources import BLEU_TOKENIZER, METRICS, DataConfig, TextSource, listed
from transduct.data.text_warnings import warn_of_preprocessed
from transduct.data.tokenizer import NO_SPECIAL_TOKENS, SpecialTokens, Tokenizer
from transduct.data.tokenizer_file import is_blank
from transduct.decoding.filters import Filter, WellFormedTrees
from transduct.decoding.search import Hypothesis, Phrase
from transduct.decoding.shortlist import Narrowed, Shortlist
from transduct.errors import TransductError, require
from transduct.inference import engine
from transduct.inference.batches import answered, device_of, flat
from transduct.inference.engine import captures
from transduct.inference.quantised import QuantisedLinear
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.models import rnn, transformer
from transduct.predictors.base import (
    ENSEMBLE,
    Attention,
    Predictor,
    Report,
    Trace,
    configuration,
)
from transduct.predictors.languages import FROM, TO, Languages, special_tokens_of
from transduct.predictors.long_texts import (
    WORD_STARTS,
    Piece,
    Plan,
    Translation,
    assemble,
    in_pieces,
    laid_out,
    likeliest,
    spans_of,
    tree_pieces,
    with_words,
)
from transduct.predictors.model_directory import Family, read_translator, section
from transduct.predictors.options import (
    are_given,
    asked_for,
    check_examples,
    check_inputs,
    check_lengths,
    check_nothing_given,
    check_references,
    data_with_test,
    tell_unknown,
    with_options,
)
from transduct.predictors.text import target_ids
from transduct.records import record

if TYPE_CHECKING:
    from transduct.decoding.beam_tree import RecordedBeam
    from transduct.formats.marked import Segment
    from transduct.formats.markup import Markup
    from transduct.predictors.terms import Glossary

FAMILIES = {
    "transformer": Family(transformer.Config, transformer.SIZES, transformer.Transformer),
    "rnn": Family(rnn.Config, rnn.SIZES, rnn.RNN),
}
DERIVED = {  # model fields that other sections decide
    "source_size": "tokenizer.size",
    "target_size": "tokenizer.size",
    "max_length": "data.max_length",
}
log = logging.getLogger("transduct")
SCORED = 1024  # pairs to score before their scores are yielded


class Reading(NamedTuple):
    """A text and the beginning of its translation, as the model reads them.

    Attributes:
        source, target: the tokens of both, with special tokens.
        first: the place in `target` of the first token that is not special.
        hidden, crosses: what `Translator.forced` gives for them.
    """

    source: list[int]
    target: list[int]
    first: int
    hidden: Tensor
    crosses: list[Tensor]


class Translator(Predictor):
    """Translates and scores texts and shows attention, with one model and its tokenizers."""

    several, rules = frozenset({"reference"}), ("replace",)
    verbs = Predictor.verbs | {"translate", "score", "attention", "shortlist_of"}

    def __init__(
        self,
        model: Any,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        decoding: DecodingConfig,
        changes: Sequence[Replacement] = (),
        metrics: Sequence[str] = METRICS,
        bleu_tokenize: str = BLEU_TOKENIZER,
        backwards: bool = False,
        languages: Languages | None = None,
        forbidden: Sequence[int] = (),
    ) -> None:
        self.languages, self.forbidden = languages, (*Tokenizer.UNWRITTEN, *forbidden)
        self.metrics, self.bleu_tokenize, self.backwards = list(metrics), bleu_tokenize, backwards
        self.model, self.decoding = model.eval(), decoding
        self.change = changes_of("source", changes) if changes else None
        self.hide = changes_with_placeholders("source", changes) if changes else None
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.longest = model.config.max_length - 1  # the most tokens, without the end token
        self.shortlist: Shortlist | None = None
        self.pair = {FROM: "", TO: ""}  # the languages of a model of one pair, where they are known
        self.review: Any = None  # by ensemble members that write in the other direction

    @classmethod
    def load(
        cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str
    ) -> "Translator":
        """Load the model, or ensemble of models, in a directory whose `config.json` has been
        read."""
        is_ensemble = config.get("family") == ENSEMBLE
        # An ensemble is a directory that names others; a model alone is an ensemble of one.
        configs = {directory: config}
        if is_ensemble:
            from transduct.predictors.ensembles import members_of  # most models are one

            configs = {folder: configuration(folder) for folder in members_of(directory, config)}
        members = [
            read_translator(folder, own, FAMILIES, device, precision)
            for folder, own in configs.items()
        ]
        (model, tokenizers, backwards), *others = members
        decoding = section(config, "decoding", DecodingConfig, directory)
        settings = _settings_of(config, str(directory / storage.CONFIG))
        # Members of the other direction read hypotheses backwards, and score them at the end.
        reviewers = [other for other, _, direction in others if direction != backwards]
        if is_ensemble:
            from transduct.inference.ensemble import Ensemble, Review

            alike = [other for other, _, direction in others if direction == backwards]
            model = Ensemble([model, *alike])
        translator = cls(
            model, tokenizers[0], tokenizers[-1], decoding, backwards=backwards, **settings
        )
        translator.pair = {name: str(config.get(name, "")) for name in (FROM, TO)}
        if reviewers:
            reviewer, share = Ensemble(reviewers).eval(), len(reviewers) / len(members)
            translator.review = Review(reviewer, share, Tokenizer.BEGIN, Tokenizer.END)
            # What one of them cannot read has no score, so the shortest limit is everyone's.
            translator.longest = min(translator.longest, reviewer.config.max_length - 1)
        if (path := directory / storage.SHORTLIST).exists():
            from transduct.predictors.shortlists import read_shortlist  # few models have one

            translator.shortlist = read_shortlist(path, tokenizers)
        return translator

    @classmethod
    def test_set(
        cls,
        files: Mapping[str, Any],
        recipe: Recipe | None,
        refused: Refused | None = None,
        replace: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[list[str], list[list[str]]]:
        """Sources, and the references of each: of two files or more, or the recipe's test set.

        References in files are changed by the model's rules (`replace`), as its recipe's are.
        """
        # Here and below, because a translation reads no corpus.
        from transduct.data.text import read_examples

        if are_given(files, "source", "reference"):
            rules = [record(Replacement, rule, "replace") for rule in replace]
            first, *more = (
                TextSource(source=files["source"], target=name)
                for name in listed(files["reference"])
            )
            return read_examples(first, Path(), rules, refused, more)
        data = data_with_test(DataConfig, recipe)
        return read_examples(data.test, Path(data.root), data.replace, refused)

    @classmethod
    def pairs(
        cls, files: Mapping[str, Any], replace: Sequence[Mapping[str, Any]] = ()
    ) -> list[tuple[str, str] | TransductError]:
        """The pairs of two files to score, with what is wrong with one in its place; targets are
        changed as `test_set` does.

        Raises:
            TransductError: a file cannot be read or is empty, or one has fewer lines.
        """
        from transduct.data.text import rows_or_errors

        are_given(files, "source", "reference")
        source = TextSource(source=files["source"], target=files["reference"])
        rules = [record(Replacement, rule, "replace") for rule in replace]
        change = changes_of("target", of_references(rules))
        pairs: list[tuple[str, str] | TransductError] = []
        for row in rows_or_errors(source, Path()):
            try:
                if isinstance(row, TransductError):
                    raise row
                pairs.append((row[0], change(row[1])))
            except TransductError as error:
                pairs.append(error)
        return pairs

    def unknown(self, text: str, by_sentence: bool = False) -> list[str]:
        """What the source's vocabulary lacks of a text, bullets and the like apart, which the model
        never reads; see `Predictor`."""
        if self.source_tokenizer.bytes:
            return []
        parts, _ = laid_out(text, by_sentence)
        changed = parts if self.change is None else map(self.change, parts)
        return [each for part in changed for each in self.source_tokenizer.unknown(part)]

    def translate(
        self,
        texts: Sequence[Any],
        n_best: int = 1,
        prefixes: Sequence[str | Sequence[int]] | None = None,
        format: "str | Markup" = "text",
        glossary: "Glossary | None" = None,
        placeholders: bool | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate each text; an empty or blank text gives an empty translation.

        Args:
            texts: each line of a text is translated by itself, and what is between lines comes
                back. One that is longer than the model takes is translated in pieces, with a
                warning.
            n_best: how many alternatives to return; the beam is at least as wide, unless an option
                sets it.
            prefixes: with what each translation begins, as whole words or token ids; blank texts
                ignore theirs.
            format: "html" or "xml" for texts with mark-up, or a `Markup`; "marked" for segments,
                which `translate_marked` takes too.
            glossary: for terms of the texts what stands for them in translations, or a list of
                forms, of which the model may choose.
            placeholders: whether what looks like %s, {name} or a number must come as often as in
                the text; None for all formats but text.
            options: fields of `DecodingConfig`, such as beam=5, length_penalty=1.0,
                temperature=0.7, top_k=10, seed=3.

        Raises:
            TransductError: an option is unknown or has a wrong value, or a prefix is impossible.
        """
        plan = self.plan(texts, n_best, prefixes, format, glossary, placeholders, **options)
        return self.assemble(plan, self.generate(plan.pieces, plan.decoding))

    def translate_marked(self, segments: "Sequence[Segment]", **options: Any) -> "list[Segment]":
        """Translate texts that have tags inside: each is a list of texts and `Mark`s.

        Args:
            options: as for `translate`.

        Raises:
            TransductError: as `translate`, or tags are not well nested.
        """
        return [each.parts for each in self.translate(segments, format="marked", **options)]

    def plan(
        self,
        texts: Sequence[Any],
        n_best: int = 1,
        prefixes: Sequence[str | Sequence[int]] | None = None,
        format: "str | Markup" = "text",
        glossary: "Glossary | None" = None,
        placeholders: bool | None = None,
        **options: Any,
    ) -> Plan:
        """The work that `translate` would do, in pieces. `generate` takes pieces of several plans
        together.

        Raises:
            TransductError: as `translate`.
        """
        if format != "text":
            require(prefixes is None, "prefixes are for plain text; leave them or the format out")
            from transduct.predictors.marked_texts import plan_of  # plain text needs none of it

            terms = {"glossary": glossary, "placeholders": placeholders is not False}
            return plan_of(self, texts, format, n_best, {**options, **terms})
        check_inputs(texts)
        require(
            isinstance(n_best, int | np.integer) and n_best >= 1,
            f"n_best is {n_best!r}, must be a whole number, at least 1",
        )
        # All checks come before any work: an answer of a minute must not end in an error.
        starts = [] if prefixes is None else self._prefixes(texts, prefixes)
        own = self.decoding
        if own.captured is True and "captured" not in options:
            own = replace(own, captured="auto")  # which refuses nothing that a call asks for
        decoding = asked_for(own, options, n_best)
        require(
            n_best <= decoding.beam,
            f"n_best is {n_best}, the beam only {decoding.beam}; ask for a beam of {n_best}",
        )
        special = self.special_tokens(decoding)
        self._check_possible(decoding, any(starts) or bool(special.begin))
        longest = self.longest - special.size
        # Before decoding, so that the warning stands even if the call is interrupted.
        tell_unknown(texts, partial(self.unknown, by_sentence=decoding.sentences))
        if decoding.constraint == "tree":
            pieces, counts = tree_pieces(texts, self.encode, longest)
            gaps: list[list[str | None]] = [[] for _ in texts]
        else:
            find_terms = None
            if glossary is not None or placeholders:
                from transduct.predictors.terms import terms_of  # few texts have any

                find_terms = terms_of(glossary, bool(placeholders))
            pieces, gaps = in_pieces(
                texts,
                decoding.sentences,
                self.hide,
                self.source_tokenizer,
                longest,
                starts,
                find_terms,
            )
            counts = [len(each) - 1 for each in gaps]
        ends = [*accumulate(counts)]
        spans = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
        return Plan(texts, pieces, spans, gaps, n_best, decoding)

    def generate(
        self, pieces: Sequence[Piece], decoding: DecodingConfig
    ) -> list[list[Translation]]:
        """The n-best list of each piece."""
        return self.ensured(pieces, self.search(pieces, decoding), decoding)

    def ensured(
        self, pieces: Sequence[Piece], found: list[list[Translation]], decoding: DecodingConfig
    ) -> list[list[Translation]]:
        """The n-best lists, searched again for pieces whose best lacks one of their terms."""
        if not any(piece.terms for piece in pieces):
            return found
        from transduct.predictors.terms import ensured

        return ensured(self, pieces, found, decoding)

    def search(
        self,
        pieces: Sequence[Piece],
        decoding: DecodingConfig,
        phrases: Sequence[Sequence[Phrase]] = (),
    ) -> list[list[Translation]]:
        """The n-best list of each piece, with phrases that it must hold, if any."""
        if not pieces:
            return []
        sentences = self.sentences(pieces, decoding)
        for one, wanted in zip(sentences, phrases):
            one.phrases = [tuple(tuple(self._turned([*f])) for f in forms) for forms in wanted]
            needed = sum(min(map(len, forms)) for forms in wanted)
            one.limit = min(self.longest + 1, one.limit + needed)
        return self.read(sentences, engine.find(self.model, sentences))

    def _trees(self, sentences: Sequence[Sentence]) -> Filter:
        """The filter that makes outputs trees over the words of their sources."""
        bounds = [(one.words, one.limit) for one in sentences for _ in range(one.beam)]
        return WellFormedTrees(self._target_pieces, Tokenizer.END, bounds)

    @cached_property
    def _target_pieces(self) -> list[str]:
        return self.target_tokenizer.pieces(range(self.target_tokenizer.size))

    def sentences(self, pieces: Sequence[Piece], decoding: DecodingConfig) -> list[Sentence]:
        """What the search is to find for each piece."""
        special, most = self.special_tokens(decoding), self.longest + 1
        begun, tree = len(special.begin), decoding.constraint == "tree"
        constrain = self._trees if tree else None
        narrow = self._narrow if decoding.shortlist else None
        found = []
        for piece in pieces:
            limit = decoding.limit(len(piece.ids) + 1) + begun + len(piece.start)
            limit = min(most, 4 * piece.words + 20 if tree else limit)
            around = Tokenizer.BEGIN, Tokenizer.END, self.forbidden
            start = [*special.begin, *piece.start]
            one = Sentence(special.source(piece.ids), limit, decoding, *around, start, begun)
            one.constrain, one.narrow, one.words = constrain, narrow, piece.words
            found.append(one)
        return found

    def read(
        self, sentences: Sequence[Sentence], found: list[list[Hypothesis]]
    ) -> list[list[Translation]]:
        """The n-best list of each sentence, from the hypotheses of the search."""
        decoding, begun = sentences[0].config, sentences[0].free
        if begun:
            found = [[replace(h, tokens=h.tokens[begun:]) for h in each] for each in found]
        if self.review is not None:
            alpha, budget = decoding.length_penalty, _budget(self.review.model, decoding)
            sources = [one.source for one in sentences]
            found = self.review.sort(found, sources, 0.0 if decoding.temperature else alpha, budget)
        read = [[(self._turned(h.tokens), h.score) for h in hypotheses] for hypotheses in found]
        texts = iter(self.target_tokenizer.decode([tokens for each in read for tokens, _ in each]))
        return [
            [
                Translation(next(texts).replace("\n", " ").strip(), score, tokens)
                for tokens, score in each
            ]
            for each in read
        ]

    def assemble(self, plan: Plan, found: Sequence[list[Translation]]) -> list[Translation]:
        """The translation of each text of a plan, from the n-best list of each of its pieces."""
        shown = [
            [replace(each, text=restored(each.text, piece.replaced)) for each in hypotheses]
            if piece.replaced
            else list(hypotheses)
            for piece, hypotheses in zip(plan.pieces, found, strict=True)
        ]
        if plan.inner is not None:
            from transduct.predictors.marked_texts import assembled

            return assembled(self, plan, shown)
        # A blank text has a score too, that of ending at once; it is computed only if there is one.
        blank = next(self.scores([""], [[]])) if any(a == b for a, b in plan.spans) else 0.0
        whole = [
            assemble(shown[a:b], plan.n_best, blank, between)
            for (a, b), between in zip(plan.spans, plan.gaps, strict=True)
        ]
        if plan.decoding.constraint == "tree":
            return [with_words(each, text.split()) for each, text in zip(whole, plan.texts)]
        return whole

    def special_tokens(self, decoding: DecodingConfig) -> SpecialTokens:
        """The special tokens around texts in the languages that a decoding section names. For a
        model of one pair, it may name that pair's."""
        given = {name: vars(decoding)[name] for name in (FROM, TO) if vars(decoding)[name]}
        if self.languages is None and (not given or all(self.pair.values())):
            for name, language in given.items():
                from transduct.data.languages import find  # few calls name a language

                find(language, [self.pair[name]])  # refuses another
            return NO_SPECIAL_TOKENS
        return special_tokens_of(
            self.languages, decoding, (self.source_tokenizer, self.target_tokenizer)
        )

    def score(
        self, texts: Sequence[str], targets: Sequence[str | Sequence[int]], **languages: Any
    ) -> list[float]:
        """The log-probability of each target, given as a text or as token ids (forced decoding).

        Args:
            languages: `source_language` and `target_language`, for models of many. A token that
                names one is not scored.

        Targets are scored as given: the recipe's changes of target text (`data.replace`) apply to
        files only.

        Raises:
            TransductError: the counts differ, or a text is longer than the model takes.
        """
        return [*self.scores(texts, targets, **languages)]

    def scores(
        self, texts: Sequence[str], targets: Sequence[str | Sequence[int]], **languages: Any
    ) -> Iterator[float]:
        """Like `score`, but yields scores as they are computed, after all pairs are checked."""
        check_inputs(texts)
        odd = languages.keys() - {FROM, TO}
        require(not odd, f"a score has no option '{min(odd, default='')}'; leave it out")
        special = self.special_tokens(with_options(self.decoding, languages))
        longest = self.longest - special.size
        ids = target_ids(self.target_tokenizer, targets, "pair")
        tell_unknown(texts, self.unknown)
        tell_unknown((t for t in targets if isinstance(t, str)), self.target_tokenizer.unknown)
        require(
            len(texts) == len(ids),
            f"found {len(texts)} sources and {len(ids)} targets; give as many of each",
        )
        coded = zip(texts, self.encode(texts), strict=True)
        sources = [[] if is_blank(text) else ids for text, ids in coded]
        check_lengths([max(pair, key=len) for pair in zip(sources, ids)], longest, "pair")
        # Thousands at a time, so that the first scores are known before the last pair is read.
        budget = _budget(self.model, self.decoding)
        for start in range(0, len(ids), SCORED):
            some = [special.source(source) for source in sources[start : start + SCORED]]
            wanted = [self._turned(target) for target in ids[start : start + SCORED]]
            found = engine.score(self.model, some, wanted, special.first, Tokenizer.END, budget)
            if self.review is not None:
                found = self.review.scores(
                    found, some, wanted, _budget(self.review.model, self.decoding)
                )
            yield from found

    def attention(
        self, text: str, target: str | Sequence[int] | None = None, **options: Any
    ) -> Attention:
        """Every attention weight of a text and its translation; see `traced`."""
        return self.traced(text, target, **options).attention

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def traced(self, text: str, target: str | Sequence[int] | None = None, **options: Any) -> Trace:
        """Every attention weight and every prediction for a text and its translation.

        Args:
            target: the text or token ids given to the decoder; by default the model's own
                translation, with options as for `translate`.

        Raises:
            TransductError: the model has no attention, the text is longer than the model takes, or
                both a target and an option are given.
        """
        require(
            self.model.attention_names,
            "this model has no attention to show: its context is one vector, or it is an ensemble; "
            "use another model",
        )
        languages = {name: options[name] for name in (FROM, TO) if name in options}
        check_nothing_given(target, {k: v for k, v in options.items() if k not in languages})
        check_inputs([text])
        special = self.special_tokens(with_options(self.decoding, languages))
        source = special.source(self.encode([text])[0])
        too_long = f"attention takes at most {self.longest} tokens a side; shorten the text"
        # before it is translated
        require(len(source) <= self.longest + 1, too_long)
        if target is not None:  # else `translate` says it
            tell_unknown([text], self.unknown)
        given = self.translate([text], **options)[0].tokens if target is None else target
        [ids] = target_ids(self.target_tokenizer, [given], "target")
        require(len(ids) + len(special.begin) <= self.longest, too_long)
        device, weights = device_of(self.model), list[Tensor]()
        memory_tokens, memory_segments = flat([source], device)
        memory = self.model.encode(memory_tokens, memory_segments, weights)
        read = [*special.first, *self._turned(ids)]
        inputs, segments = flat([read], device)
        hidden = self.model.decode(inputs, segments, memory, memory_segments, weights)
        logits = self.model.logits(hidden).float().cpu()
        tokenizers = self.source_tokenizer, self.target_tokenizer
        labels = [side.pieces(ids) for side, ids in zip(tokenizers, (source, read), strict=True)]
        seen = Attention.of(self.model, weights, *labels)
        written = [*read[1:], Tokenizer.END]
        return Trace(seen, tokenizers, source, read, written, len(special.first) - 1, logits)

    def searched(self, text: str, prefix: Sequence[int] = (), **options: Any) -> "RecordedBeam":
        """The beam search for a text of one line, with all that it considered; options as for
        `translate`.

        Raises:
            TransductError: the text is translated in several pieces, or is blank.
        """
        plan = self.plan([text], prefixes=[prefix] if prefix else None, **options)
        self._one_piece(plan, "search")
        decoding = replace(plan.decoding, temperature=0.0, shortlist=False)
        return engine.recorded(self.model, *self.sentences(plan.pieces, decoding))

    def _one_piece(self, plan: Plan, what: str) -> None:
        require(
            len(plan.pieces) == 1,
            f"found {len(plan.pieces)} lines or parts; ask for the {what} of one at a time",
            input=0,
        )

    @torch.inference_mode()
    def explained(
        self, text: str, target: str, tokens: Sequence[int], top: int = 0, **languages: Any
    ) -> list[dict[str, Any]]:
        """The tokens of a translation: the text of each, its log-probability, the characters of
        the translation that it is and, if the model has attention, those of the text that it most
        looked at. None stands for characters that cannot be found.

        Args:
            top: how many of the likeliest tokens to name for each place; see `likeliest`.

        Raises:
            TransductError: the text is translated in several pieces.
        """
        read = self._read(text, tokens, languages)
        first, source = read.first, read.source
        inputs = torch.tensor(read.target, device=read.hidden.device)
        logs = self.model.logits(read.hidden).float().log_softmax(-1)[first - 1 : -1]
        found = logs.gather(1, inputs[first:, None]).squeeze(1).tolist()
        columns: list[int] = []
        if read.crosses:
            columns = read.crosses[-1][0, first - 1 : -1, : len(source)].argmax(-1).tolist()
        others = likeliest(self.target_tokenizer, logs, top)
        if self.backwards:
            found, columns, others = found[::-1], columns[::-1], others[::-1]
        shown = self.target_tokenizer.pieces(tokens)
        spans = spans_of(shown, target)
        origins = spans_of(self.source_tokenizer.pieces(source), text)
        return [
            {
                "text": piece.strip("".join(WORD_STARTS)),
                "log_probability": found[place],
                "target": spans[place],
                "source": origins[columns[place]] if columns else None,
                **({"top": others[place]} if top else {}),
            }
            for place, piece in enumerate(shown)
        ]

    def _read(self, text: str, tokens: Sequence[int], languages: dict[str, Any]) -> Reading:
        """Let the model read a text and the beginning of its translation.

        Raises:
            TransductError: the text is translated in several pieces.
        """
        plan = self.plan([text], **languages)
        self._one_piece(plan, "tokens")
        special = self.special_tokens(plan.decoding)
        source = special.source(plan.pieces[0].ids)
        target = [*special.first, *self._turned([*tokens])]
        return Reading(source, target, len(special.first), *self.forced([source], [target]))

    @torch.inference_mode()
    def alternatives(
        self, text: str, target: str, place: int, count: int = 8, **languages: Any
    ) -> list[tuple[str, float]]:
        """Translations that begin as `target` does and go on with each of the likeliest tokens
        instead of the one at the character `place`; each with the probability of that token, the
        likeliest first.

        Raises:
            TransductError: the text is translated in several pieces, or the model writes right to
                left.
        """
        [ids] = target_ids(self.target_tokenizer, [target], "target")
        spans = spans_of(self.target_tokenizer.pieces(ids), target)
        kept = next((n for n, span in enumerate(spans) if span and span[1] > place), len(ids))
        hidden = self._read(text, ids[:kept], languages).hidden
        probabilities = self.model.logits(hidden[-1:]).float().softmax(-1)[0]
        probabilities[[*Tokenizer.UNWRITTEN, Tokenizer.END]] = 0.0
        found = probabilities.topk(min(count, len(probabilities)))
        prefixes = [[*ids[:kept], token] for token in found.indices.tolist()]
        outputs = self.translate([text] * len(prefixes), prefixes=prefixes, **languages)
        return [(each.text, p) for each, p in zip(outputs, found.values.tolist()) if p > 0]

    @torch.inference_mode()
    def alignments(
        self,
        sources: Sequence[Sequence[int]],
        outputs: Sequence[list[int]],
        decoding: DecodingConfig,
    ) -> list[list[int]]:
        """For each token of each output, the place of the source's token that the last
        cross-attention weights most, without special tokens; empty if the model has no
        attention."""
        special = self.special_tokens(decoding)
        if not self.model.attention_names:
            return [[] for _ in sources]
        begin, first = len(special.before), len(special.first) - 1
        lengths = [max(map(len, pair)) for pair in zip(sources, outputs, strict=True)]

        def align(batch: list[int]) -> list[list[int]]:
            reads = [[*special.first, *self._turned(outputs[i])] for i in batch]
            _, crosses = self.forced([special.source(sources[i]) for i in batch], reads)
            rows = [
                weights[first : first + len(outputs[i]), begin : begin + len(sources[i])]
                for i, weights in zip(batch, crosses[-1], strict=True)
            ]
            return [self._turned(row.argmax(-1).tolist() if row.numel() else []) for row in rows]

        return answered(align, lengths, decoding.budget(device_of(self.model)))

    def forced(
        self, sources: Sequence[Sequence[int]], reads: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[Tensor]]:
        """The decoder's hidden states (M, D) over given tokens, and for each layer the mean over
        heads of its cross-attention (B, T, S); no layer if the model has no attention."""
        device, weights = device_of(self.model), list[Tensor]()
        memory_tokens, memory_segments = flat(sources, device)
        memory = self.model.encode(memory_tokens, memory_segments)
        inputs, segments = flat(reads, device)
        names = [name for name in self.model.attention_names if name.startswith("decoder")]
        given = (weights,) if names else ()
        hidden = self.model.decode(inputs, segments, memory, memory_segments, *given)
        crosses = [each for each, name in zip(weights, names) if name.endswith("cross")]
        return hidden, [each.float().mean(1).cpu() for each in crosses]

    def evaluate(
        self,
        data: tuple[list[str], list[list[str]]],
        against: "Translator | None" = None,
        bleu_tokenize: str | None = None,
        metrics: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Report:
        """Translate the sources of `data` and score the outputs, with signatures and 95 %
        confidence intervals.

        Args:
            data: sources, and a list of references for each.
            against: another model; the details then hold its scores and p-values, by paired
                bootstrap or, for proportions, McNemar's test.
            bleu_tokenize, metrics: the scores, if not those of the recipe (`DataConfig`); metrics
                may be one text with commas.
            options: as for `translate`; `outputs` are translations that are there already.
        """
        # Imported here, because most translators are never evaluated.
        from transduct.evaluation import text as scoring

        tokenize = self.bleu_tokenize if bleu_tokenize is None else str(bleu_tokenize)
        named = self.metrics if metrics is None else metrics
        names = [n.strip() for n in named.split(",")] if isinstance(named, str) else [*named]
        check_examples(data)
        if against is not None:
            self.check_against(against, data)
        sources, references = data
        check_references(references)
        if metrics is not None or {"bleu", "spbleu"} & {*names}:
            scoring.check_metrics(names, tokenize)  # before all is translated
        asked, names = names, scoring.meaningful(names, tokenize, references)
        if len(names) < len(asked):
            log.warning("no reference has four tokens, so BLEU would be 0: left out")
        if tokenize != "none" and not {*names}.isdisjoint(scoring.SACREBLEU_METRICS):
            warn_of_preprocessed(sources, references)
        scored = {"metrics": names, "bleu_tokenize": tokenize}
        report = self.measured(data, {**options, **scored})
        if against is None:
            return report
        # A model of one pair has no languages to choose.
        unread = (FROM, TO) if against.languages is None else ()
        options = {name: value for name, value in options.items() if name not in unread}
        return report.compared_with(
            against.measured(data, {**options, **scored, "intervals": False})
        )

    def measured(
        self, data: tuple[list[str], list[list[str]]], options: Mapping[str, Any]
    ) -> Report:
        """The report of `evaluate`, without its checks; `options` name the scores too."""
        from transduct.evaluation import text as scoring

        (sources, references), options = data, dict(options)
        names, tokenize = options.pop("metrics"), options.pop("bleu_tokenize")
        intervals = options.pop("intervals", True)
        outputs = options.pop("outputs", None) or self.predict(sources, **options)
        found = scoring.corpus_scores(outputs, references, names, tokenize, intervals=intervals)
        details = {"sentences": len(sources), **found.details}
        return Report(found.scores, details, outputs, scoring.ERROR_METRICS, found.right)

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """The best translation of each text; options as for `translate`."""
        return [translation.text for translation in self.translate(inputs, **options)]

    def shortlist_of(self, text: Path) -> dict[str, bytes]:
        """A lexical shortlist; see `shortlists.shortlist_of`."""
        from transduct.predictors import shortlists

        return shortlists.shortlist_of(self, text)

    def _narrow(self, sources: Sequence[Sequence[int]]) -> Narrowed:
        """The model with its output restricted to the shortlist of some sources."""
        assert self.shortlist is not None
        device = device_of(self.model)
        tokens, allowed = (x.to(device) for x in self.shortlist.candidates(sources))
        return Narrowed(narrowed(self.model, tokens), tokens, allowed)

    def _turned(self, ids: list[int]) -> list[int]:
        """Convert target tokens between reading order and the order in which the model writes; its
        own inverse."""
        return ids[::-1] if self.backwards else ids

    def token_counts(self, inputs: Sequence[str]) -> list[int]:
        """The number of source tokens of each text, its end token counted."""
        return [len(ids) + 1 for ids in self.encode(inputs)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode source texts, after the recipe's changes of text; without end tokens."""
        changed = texts if self.change is None else [self.change(text) for text in texts]
        return self.source_tokenizer.encode(changed)

    def _prefixes(
        self, texts: Sequence[str], prefixes: Sequence[str | Sequence[int]]
    ) -> list[list[int]]:
        found = target_ids(self.target_tokenizer, prefixes, "prefix")
        require(
            len(texts) == len(found),
            f"found {len(texts)} texts and {len(found)} prefixes; give a list with one for each",
        )
        check_lengths(found, self.longest, "prefix")
        for number, ids in enumerate(found):
            require(
                {*Tokenizer.UNWRITTEN, Tokenizer.END}.isdisjoint(ids),
                "holds what no translation does, a character that the vocabulary lacks or a "
                f"special token: {prefixes[number]!r:.60}; write it differently",
                input=number,
                unit="prefix",
            )
        return found

    def _check_possible(self, decoding: DecodingConfig, prefixed: bool) -> None:
        try:
            captures(self.model, decoding)
        except ValueError as error:
            raise TransductError(str(error)) from error
        if decoding.shortlist and self.shortlist is None:
            remedy = "make one: transduct convert MODEL OUT --shortlist TEXT"
            if not self.model.attention_names:
                remedy = (
                    "it can have none, without attention or as an ensemble: leave shortlist out"
                )
            raise TransductError(f"this model has no shortlist; {remedy}")
        require(
            not decoding.shortlist or decoding.constraint == "none",
            "a shortlist may lack what a constraint needs; leave one of them out",
        )
        what = "a prefix" if prefixed else "a constraint"
        require(
            not self.backwards or not (prefixed or decoding.constraint != "none"),
            f"this model writes right to left, so it cannot continue {what}; leave it out",
        )
        given = {"a shortlist": decoding.shortlist, "a constraint": decoding.constraint != "none"}
        if prefixed and (other := [name for name, value in given.items() if value]):
            raise TransductError(f"prefixes do not go with {other[0]}; leave one of them out")


def _settings_of(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings of a translator in the `config.json` of a model, by the names of its arguments.

    Raises:
        TransductError: one is of a wrong type.
    """
    if not isinstance(rules := config.get("replace", []), list):
        raise TransductError(
            f"{source}: replace is {rules!r:.40}, expected a list of replacements; copy the "
            "model again"
        )
    changes = [record(Replacement, rule, "replace", source) for rule in rules]
    metrics = config.get("metrics", METRICS)
    tokenize = config.get("bleu_tokenize", BLEU_TOKENIZER)
    require(
        isinstance(metrics, list | tuple)
        and all(isinstance(each, str) for each in (*metrics, tokenize)),
        f"metrics is {metrics!r:.40} and bleu_tokenize {tokenize!r:.40}, expected names of "
        "scores and of a tokenizer; copy the model again",
        file=source,
    )
    languages, forbidden = config.get("languages"), config.get("forbidden", [])
    if languages is not None:
        languages = record(Languages, languages, "languages", source)
    require(
        isinstance(forbidden, list) and all(type(token) is int for token in forbidden),
        f"forbidden is {forbidden!r:.40}, expected token ids; copy the model again",
        file=source,
    )
    return {
        "changes": changes,
        "metrics": metrics,
        "bleu_tokenize": tokenize,
        "languages": languages,
        "forbidden": forbidden,
    }


def _budget(model: Any, decoding: DecodingConfig) -> int:
    """The most tokens to score in one batch."""
    if any(isinstance(part, QuantisedLinear) for part in model.modules()):
        return 1  # one by one: 8-bit rounding would make scores depend on the batch
    return decoding.budget(device_of(model))
