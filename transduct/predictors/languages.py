"""The languages of a model, and the tokens that stand around a text for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transduct.data.tokenizer import NO_SPECIAL_TOKENS, SpecialTokens, Tokenizer
from transduct.errors import require

FROM, TO = "source_language", "target_language"  # as options are named in Python


@dataclass(frozen=True)
class Languages:
    """How a model is told its languages, and what else stands around every text.

    In the templates, {from} and {to} stand for the model's codes of the two languages.

    Attributes:
        codes: the model's own codes of its languages.
        text: put before a source, as text.
        before, after, begin: names of tokens before a source, after its end, and with which an
            output begins.
        padding, padded: see `SpecialTokens`; the former by its name.
    """

    codes: list[str] = field(default_factory=list)
    text: str = ""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    begin: list[str] = field(default_factory=list)
    padding: str = ""
    padded: int = 0

    def special_tokens(
        self, source: str, target: str, tokenizers: Sequence[Tokenizer]
    ) -> SpecialTokens:
        """The special tokens for a pair of languages, given by any code or name; "" for none.

        Raises:
            TransductError: one is unknown, or is needed and not given.
        """
        from transduct.data.languages import find, listed  # few models need a list of languages

        known = {
            name: find(given, self.codes) if given else ""
            for name, given in (("from", source), ("to", target))
        }
        needed = " ".join([*self.before, *self.after, *self.begin])
        for name, option in (("from", FROM), ("to", TO)):
            require(
                known[name] or f"{{{name}}}" not in needed,
                f"this model needs the language to translate {name}: give --{name}, or "
                f"{option}; it has {listed(self.codes)}",
            )
        tokens = [
            _ids(templates, known, tokenizer)
            for templates, tokenizer in (
                (self.before, tokenizers[0]),
                (self.after, tokenizers[0]),
                (self.begin, tokenizers[-1]),
            )
        ]
        text = self.text if all(known[n] or f"{{{n}}}" not in self.text for n in known) else ""
        encoded = tokenizers[0].encode([text.format_map(known)])[0] if text else []
        fill = _ids([self.padding], known, tokenizers[0]) if self.padding else (0,)
        before, after, begin = tokens
        return SpecialTokens((*encoded, *before), after, begin, fill[0], self.padded)

    def shown(self) -> list[str]:
        """The languages for `describe`: code and name."""
        from transduct.data.languages import named

        return [f"{code} {named(code)}".rstrip() for code in self.codes]


def _ids(templates: Sequence[str], known: dict[str, str], tokenizer: Tokenizer) -> tuple[int, ...]:
    names = [template.format_map(known) for template in templates]
    found = [tokenizer.id_of(name) for name in names]
    for name, number in zip(names, found, strict=True):
        require(
            number is not None,
            f"the tokenizer has no token '{name:.40}'; copy the model again, or convert it anew",
        )
    return tuple(number for number in found if number is not None)


def special_tokens_of(
    languages: Languages | None, decoding: Any, tokenizers: Sequence[Tokenizer]
) -> SpecialTokens:
    """The special tokens that a decoding section asks for.

    Raises:
        TransductError: as `special_tokens`, or a language is given and the model has none.
    """
    for name, option in (("from", FROM), ("to", TO)):
        require(
            not vars(decoding)[option] or (languages is not None and languages.codes),
            f"this model has one pair of languages; leave out --{name}, or {option}, which is "
            f"'{vars(decoding)[option]:.40}'",
        )
    if languages is None:
        return NO_SPECIAL_TOKENS
    return languages.special_tokens(vars(decoding)[FROM], vars(decoding)[TO], tokenizers)
