"""Lexical shortlists of a translation model, from where it looks while it translates a text."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduct import storage
from transduct.data.lines import read_lines
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.shortlist import Shortlist
from transduct.errors import TransductError, require
from transduct.inference.batches import answered
from transduct.inference.settings import ON_CPU
from transduct.predictors.long_texts import Piece

# the most target tokens of a shortlist for each source token, and for all
ALIGNED, COMMON = 50, 100


@torch.inference_mode()
def align(translator: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Word alignment by attention: pairs of source and target tokens from greedy translations.

    Each target token is paired with the source token that has the largest cross-attention
    weight when it is chosen, summed over layers and heads. The end token, to which idle heads
    attend, is left out.

    Raises:
        TransductError: the model has no attention.
    """
    require(
        translator.model.attention_names,
        "this model has no attention to align with: its context is one vector, or it is an "
        "ensemble; use another model",
    )
    special = translator.special_tokens(translator.decoding)
    ahead, longest = len(special.begin), translator.longest - special.size
    pieces = [Piece(ids[:longest]) for ids in translator.encode(texts) if ids]
    sources = [special.source(piece.ids) for piece in pieces]
    greedy = replace(
        translator.decoding,
        beam=1,
        temperature=0.0,
        shortlist=False,
        constraint="none",
        captured=False,
    )
    targets = [translator._turned(found[0].tokens) for found in translator.generate(pieces, greedy)]
    words = len(special.before)

    def looked_at(numbers: list[int]) -> list[list[int]]:
        """For each target token of some sentences the place of a source token."""
        reads = [[*special.first, *targets[i]] for i in numbers]
        _, crosses = translator.forced([sources[i] for i in numbers], reads)
        weights = zip(numbers, torch.stack(crosses).sum(0), strict=True)  # (T, S) each
        rows = [row[ahead:, words : words + len(pieces[i].ids)] for i, row in weights]
        return [(row.argmax(-1) + words).tolist() for row in rows]

    lengths = [max(len(s), len(t) + ahead + 1) for s, t in zip(sources, targets, strict=True)]
    found = zip(sources, targets, answered(looked_at, lengths, ON_CPU), strict=True)
    pairs = [
        (source[place], token)
        for source, target, places in found
        for place, token in zip(places, target)
    ]
    source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return source, target


def shortlist_of(translator: Any, text: Path) -> dict[str, bytes]:
    """Make a shortlist from the model's translations of the lines of a text: a file of its
    directory, by name.

    Raises:
        TransductError: the text cannot be read or holds no words.
    """
    aligned = align(translator, list(read_lines(text)))
    require(
        len(aligned[0]),
        f"{text}: holds no words to align; give text like that to be translated",
    )
    always = (*Tokenizer.UNWRITTEN, Tokenizer.END)
    # A character that is spelt in bytes is most often copied, in whatever text it is.
    theirs = {byte: token for token, byte in translator.target_tokenizer.bytes.items()}
    copied = [
        (token, theirs[byte])
        for token, byte in translator.source_tokenizer.bytes.items()
        if byte in theirs
    ]
    both = torch.tensor(copied, dtype=torch.int64).view(-1, 2).unbind(1)
    aligned = torch.cat((aligned[0], both[0])), torch.cat((aligned[1], both[1]))
    made = Shortlist.of(*aligned, translator.source_tokenizer.size, always, ALIGNED, COMMON)
    return {storage.SHORTLIST: storage.pack(vars(made))}


def read_shortlist(path: Path, tokenizers: Sequence[Tokenizer]) -> Shortlist:
    """Load the shortlist in a file of a model directory, whose tokenizers are given.

    Raises:
        TransductError: the file holds none, or one of other vocabularies.
    """
    # the file may be replaced
    tensors = {name: tensor.clone() for name, tensor in storage.read_tensors(path).items()}
    known, special = (
        {each.name for each in fields(Shortlist)},
        {*Tokenizer.UNWRITTEN, Tokenizer.END},
    )
    if tensors.keys() == known and (made := Shortlist(**tensors)).fits(
        tokenizers[0].size, tokenizers[-1].size, special
    ):
        return made
    raise TransductError(
        f"{path}: is not a shortlist of this model; make one: transduct convert MODEL OUT "
        "--shortlist TEXT"
    )
