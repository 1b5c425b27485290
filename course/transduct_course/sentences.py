"""Parts of generated sentences that read well for 0, 1, all, and numbers that do not change."""

from transduct_course.experiment import Words


def change(before: float, after: float) -> Words:
    """How a share changes: "goes from 98% to 36%", "stays at 100%"."""
    first, last = f"{before:.0%}", f"{after:.0%}"
    if first == last:
        return Words(f"stays at {last}", f"{last}를 유지한다")
    return Words(f"goes from {first} to {last}", f"{first}에서 {last}로 바뀐다")


def ends(value: float, other: float, form: str = ".3f") -> Words:
    """Where one of two losses ends: "ends at 0.53 instead of 0.01", "ends at 0.003 either way"."""
    one, two = format(value, form), format(other, form)
    if one == two:
        return Words(f"ends at {one} either way", f"어느 쪽이든 {one}에서 끝난다")
    return Words(f"ends at {one} instead of {two}", f"{two} 대신 {one}에서 끝난다")
