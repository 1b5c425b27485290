"""In which language a text is, among those that are served."""

from collections.abc import Sequence

from transduct.data.languages import parts_of
from transduct.data.quality import identifier


def detect(text: str, codes: Sequence[str]) -> list[tuple[str, float]]:
    """The languages that a text may be in, the likeliest first, with their probabilities in
    percent.

    Args:
        codes: the languages that are served; those that the library does not know come last.
    """
    own = {parts_of(code)[0]: code for code in reversed(codes)}
    if len(codes) == 1:
        return [(codes[0], 100.0)]
    found = [(own[key], 100 * float(p)) for key, p in identifier("serve").rank(text) if key in own]
    total = sum(p for _, p in found) or 1.0
    ranked = [(code, round(100 * p / total, 1)) for code, p in found]
    return [*ranked, *[(code, 0.0) for code in codes if code not in dict(ranked)]]
