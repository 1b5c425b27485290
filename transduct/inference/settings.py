"""What is asked of a search: its settings, its sentences, and how long an output may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from transduct.decoding.filters import Filter
from transduct.decoding.search import LengthRule, Phrase, Stopping
from transduct.decoding.shortlist import Narrowed
from transduct.records import Checked, Count, Range

# source tokens decoded together; CAPTURED is for a GPU too
ON_CPU, ON_GPU, CAPTURED = 1024, 4096, 16384
USUAL = 8  # the widest beam for which these hold
# the lowest temperature, and the largest length penalty that does not overflow
COLDEST, STEEPEST = 1e-3, 20.0
# tokens of an output for each of its source, and more, where nothing else is known
EXPANSION = 2.0, 20
PAGE = 16  # tokens whose keys and values lie in a page of a running batch
WIDEST = 1000  # the widest beam; each hypothesis has a KV cache
BeamWidth = Annotated[int, Range(1, WIDEST)]
LengthPenalty = Annotated[float, Range(-STEEPEST, STEEPEST)]


@dataclass(frozen=True)
class DecodingConfig(Checked):
    """How outputs are generated.

    Attributes:
        beam: beam size; 1 is greedy. When sampling, the number of samples drawn for each source,
            returned likeliest first; a call that does not set it draws as many as it returns.
        length_penalty: alpha of Wu et al. 2016 or, by the `length_rule` "power", of |Y|^alpha.
        at_limit: the end of an output that is as long as allowed: scored ("end"), free ("free") or
            no part of it ("cut").
        length_rule: what a score is divided by; see `decoding.search.length_penalty`. Models of
            Hugging Face's bring "power".
        stopping: when a search has enough hypotheses; see `decoding.search.Beam`. Models of Hugging
            Face's bring "early", "estimate" or "never".
        batch_tokens: the most source tokens decoded together; 0 for a default that suits the
            device.
        workers: batches decoded in parallel on a CPU; 0 for one per core.
        shortlist: score only the tokens that the source makes likely, if the model has a lexical
            shortlist; scores are then log-probabilities among those tokens.
        temperature: if above zero, sample tokens instead of searching.
        top_k: sample from the k likeliest tokens; 0 for all.
        top_p: sample from the likeliest tokens whose probabilities sum to p; 1 for all.
        seed: seed for sampling.
        validation_beam: beam size of the validations during training.
        constraint: "tree" allows only well-formed trees over the input's words, in tasks that
            support it.
        expansion: an output may have this many tokens for each token of its source, and 20 more. 0
            stands for 2 or, in training, for what the training data need, if that is more.
        max_length: the most tokens of an output, its end included, whatever the source; 0 leaves it
            to `expansion`.
        source_language, target_language: by any code or name, for models of many languages.
        no_repeat: no output (with `sentences`, no sentence of one) holds a run of this many tokens
            twice; 0 allows any. 3 or 4 break loops.
        sentences: translate each sentence of a text by itself, for texts of several. Trees are of
            whole texts.
        captured: on a GPU, replay decoding steps as CUDA graphs of fixed shape. With auto this is
            done wherever it can be: for Transformers with an encoder, in search and in sampling,
            not with a shortlist or a constraint.
    """

    beam: BeamWidth = 5
    length_penalty: LengthPenalty = 1.0
    length_rule: LengthRule = "wu"
    stopping: Stopping = "likeliest"
    at_limit: Literal["end", "free", "cut"] = "end"
    batch_tokens: Count = 0
    workers: Count = 0
    shortlist: bool = False
    temperature: Annotated[float, Range(COLDEST, also=0)] = 0.0
    top_k: Count = 0
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    seed: int = 1
    validation_beam: BeamWidth = 1
    constraint: Literal["none", "tree"] = "none"
    expansion: Annotated[float, Range(0, WIDEST)] = 0.0
    max_length: Count = 0
    source_language: str = ""
    target_language: str = ""
    no_repeat: Count = 0
    sentences: bool = False
    captured: bool | Literal["auto"] = "auto"

    def refuse_options_of_memories(self) -> None:
        """Check that no option is set that only models decoding over a memory support.

        Raises:
            ValueError: if one is set.
        """
        for name in (
            *("captured", "shortlist", "constraint", "expansion", "sentences", "no_repeat"),
            *("max_length", "source_language", "target_language"),
        ):
            if getattr(self, name) not in (False, "none", "auto", ""):
                raise ValueError(
                    f"{name} is for models that decode over a memory; leave {name} out"
                )

    def limit(self, source: int) -> int:
        """The most tokens of an output for a source of this many, both counted with their end."""
        longest = self.max_length + (self.at_limit == "cut")  # without its end
        if self.max_length and not self.expansion:
            return longest
        most = longest_output(source, self.expansion)
        return min(most, longest if self.max_length else most)

    def budget(self, device: torch.device) -> int:
        """Source tokens decoded together: many on a GPU, few enough for the cache on a CPU, and
        fewer for a wide beam, which multiplies the memory."""
        if self.batch_tokens:
            return self.batch_tokens
        captured = self.captured is True
        tokens = ON_CPU if device.type == "cpu" else CAPTURED if captured else ON_GPU
        return max(1, tokens * USUAL // max(self.beam, USUAL))


@dataclass(eq=False)
class Sentence:
    """What is asked of a running batch.

    Attributes:
        source: token ids, as the encoder takes them.
        limit: the most tokens of an output, its end included.
        begin, end: the tokens before and after every output.
        never: tokens that no output may contain.
        prefix: the tokens with which each output begins, of which the first `free` cost nothing.
        follow: called with the new tokens that all hypotheses have in common, as they appear.
        phrases: what each output must hold.
        constrain: some sentences -> the filter over their rows.
        narrow: some sources -> a model that scores only a shortlist, which has the tokens above.
        words: of the source, where outputs are trees over them.
    """

    source: Sequence[int]
    limit: int
    config: DecodingConfig
    begin: int
    end: int
    never: Sequence[int] = ()
    prefix: Sequence[int] = ()
    free: int = 0
    follow: Callable[[list[int]], None] | None = None
    phrases: Sequence[Phrase] = ()
    constrain: "Callable[[Sequence[Sentence]], Filter] | None" = None
    narrow: Callable[[Sequence[Sequence[int]]], Narrowed] | None = None
    words: int = 0

    @property
    def beam(self) -> int:
        """Its rows in the batch."""
        return self.config.beam

    @property
    def pages(self) -> int:
        """The pages that it may need."""
        rows = self.limit * self.beam
        return -(-len(self.source) // PAGE) - (-rows // PAGE)


def longest_output(source: int, expansion: float = 0.0) -> int:
    """The most tokens of an output for a source of this many, both counted with their end tokens;
    see `DecodingConfig.expansion`."""
    usual, more = EXPANSION
    return int((expansion or usual) * source) + more
