"""Labels in messages: there may be many, and wrong columns may contain whole sentences."""

from collections.abc import Sequence

SHOWN, LONGEST = 12, 40  # the most labels in a message, and characters of each


def shown_labels(labels: Sequence[str]) -> str:
    """Labels for a message, abridged: there may be many, and wrong columns may hold whole
    sentences."""
    shown = [
        label if len(label) <= LONGEST else f"{label[:LONGEST]}..." for label in labels[:SHOWN]
    ]
    return ", ".join([*shown, "..."] if len(labels) > SHOWN else shown)


def unknown_label(label: str, known: Sequence[str]) -> str:
    """What is wrong with a label that is not among those of a model."""
    return f"unknown label '{label}'; training has: {shown_labels(known)}"
