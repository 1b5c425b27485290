"""A recorded search is the same search, and its tree holds all that was considered, and why."""

import pytest
import torch

from tests.decoding.test_search import encode, find, forced_score
from tests.helpers import BEGIN, END, tiny
from transduct.decoding.beam_tree import RecordedBeam
from transduct.decoding.filters import Filter, Prefix
from transduct.decoding.search import length_penalty, search


@pytest.fixture(scope="module")
def model():
    return tiny(seed=3)


def recorded(model, length, beam, limit, alpha=1.0, filters=(), seed=1):
    memory, segments = encode(model, [length], seed)
    strategy = RecordedBeam(beam, [limit], BEGIN, END, alpha, "cpu")
    [found] = search(model, memory, segments, strategy, filters)
    return strategy, found, memory, segments


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("limit", [1, 4, 9])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_finds_what_the_search_finds(model, beam, limit, seed):
    tree, found, memory, segments = recorded(model, 6, beam, limit, seed=seed)
    assert [find(model, memory, segments, beam, [limit], 1.0)[0]] == [found]
    nodes = tree.nodes
    ended = {number for number, node in enumerate(nodes) if node.fate == "ended"}
    best = nodes[tree.winner]
    assert tree.tokens(tree.winner) == found[0].tokens
    assert best.score == found[0].score
    assert best.score / best.divisor == found[0].rank
    paths = {tuple(tree.tokens(number)): nodes[number] for number in ended}
    for each in found:
        assert paths[tuple(each.tokens)].score == each.score
    for number in ended:
        node, tokens = nodes[number], tree.tokens(number)
        assert node.divisor == length_penalty(min(len(tokens) + 1, limit), 1.0)
        assert node.score == pytest.approx(forced_score(model, memory, tokens), abs=1e-4)


class Ends(Filter):
    """Makes the end likelier."""

    def __call__(self, logits, history):
        logits[:, END] += 1.5
        return logits


@pytest.mark.parametrize("filters", [[], [Ends()]])
def test_every_node_has_its_parent_its_place_and_its_fate(model, filters):
    tree, _, _, _ = recorded(model, 6, 3, 9, filters=filters)
    nodes, steps = tree.nodes, {-1: -1}
    for number, node in enumerate(nodes):
        assert node.parent < number
        assert node.parent == -1 or nodes[node.parent].fate == "kept"
        steps[number] = steps[node.parent] + 1
    for step in range(max(steps.values()) + 1):
        level = [nodes[number] for number, at in steps.items() if number >= 0 and at == step]
        assert [node.place for node in level] == [*range(len(level))]
        assert len(level) <= 2 * tree.beam
        assert sorted((n.score for n in level), reverse=True) == [n.score for n in level]
        for node in level:
            better = [n for n in level[: node.place] if n.token != END]
            if node.token == END:
                assert node.fate == ("ended" if node.place < tree.beam else "late")
            else:
                assert node.fate == ("kept" if len(better) < tree.beam else "outranked")
    fates = {node.fate for node in nodes}
    assert fates - {"late"} == {"kept", "ended", "outranked"}
    assert ("late" in fates) == bool(filters)


def test_a_prefix_is_the_trunk_of_the_tree(model):
    tree, found, _, _ = recorded(model, 6, 2, 9, filters=[Prefix([[5, 7], [5, 7]])])
    assert [node.token for node in tree.nodes[:2]] == [5, 7]
    assert found[0].tokens[:2] == [5, 7]
    assert torch.tensor([node.score for node in tree.nodes]).isfinite().all()
