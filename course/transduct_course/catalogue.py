"""The experiments, in the order of the course."""

from difflib import get_close_matches
from pkgutil import resolve_name

from transduct.errors import TransductError
from transduct_course.experiment import Experiment

PLACES = {  # name -> where it is defined
    # part 1: why attention
    "distance": "distance:EXPERIMENT",
    "context_vector": "context_vector:EXPERIMENT",
    "parallel": "parallel:EXPERIMENT",
    # part 2: attention
    "attention_by_hand": "by_hand:BY_HAND",
    "hash_table": "hash_table:EXPERIMENT",
    "scale": "scale:EXPERIMENT",
    "contexts": "contexts:EXPERIMENT",
    # part 3: the block
    "order": "order:EXPERIMENT",
    "positions": "positions:EXPERIMENT",
    "far_words": "far_words:EXPERIMENT",
    "heads": "heads:EXPERIMENT",
    "speech_heads": "speech_heads:EXPERIMENT",
    "it_the_animal": "it_the_animal:EXPERIMENT",
    "mask": "mask:EXPERIMENT",
    "cross_attention": "cross_attention:EXPERIMENT",
    "feed_forward": "feed_forward:EXPERIMENT",
    "residual": "residual:EXPERIMENT",
    "norm": "rates:NORM",
    "ladder": "ladder:EXPERIMENT",
    # part 4: the whole
    "architecture": "architecture:EXPERIMENT",
    "shifted_targets": "by_hand:SHIFTED",
    "warm_up": "rates:WARM_UP",
    "teacher_forcing": "teacher_forcing:EXPERIMENT",
    "next_word": "next_word:EXPERIMENT",
    # part 5: the family
    "bert_pretraining": "bert_pretraining:EXPERIMENT",
    "family": "family:EXPERIMENT",
}
NAMES = tuple(PLACES)


def find(name: str) -> Experiment:
    """The experiment of this name. Raises TransductError, which names the nearest one."""
    if name not in PLACES:
        near = get_close_matches(name, NAMES, 1, 0.0)[0]
        raise TransductError(
            f"no experiment is called '{name}'; the nearest is {near} (all: transduct learn)"
        )
    experiment: Experiment = resolve_name(f"transduct_course.{PLACES[name]}")
    return experiment
