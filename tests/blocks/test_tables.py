"""Embedding tables act the same whether plain, packed or quantised."""

import pytest
import torch

from transduct.blocks.embeddings import embedding_table, numbers_of, project, rows_of
from transduct.inference.packed import PackedTable
from transduct.inference.quantised import QuantisedTable

D = 8


def test_scaled_embeddings_and_tied_logits_begin_near_one():
    torch.manual_seed(1)
    table = embedding_table(500, 64)
    assert (table * 8).std().item() == pytest.approx(1.0, rel=0.02)
    hidden = torch.nn.functional.layer_norm(torch.randn(50, 64), (64,))
    assert (hidden @ table.T).std().item() == pytest.approx(1.0, rel=0.02)


def test_every_kind_of_table_returns_its_numbers():
    table = torch.randn(11, D)
    assert numbers_of(table) is table
    assert torch.equal(numbers_of(PackedTable(table)), table)
    torch.testing.assert_close(numbers_of(QuantisedTable(table)), table, atol=0.02, rtol=0.0)


@torch.no_grad()
@pytest.mark.parametrize("kind", [PackedTable, QuantisedTable])
def test_rows_and_products_of_a_table_are_those_of_its_numbers(kind):
    held, tokens, hidden = kind(torch.randn(11, D)), torch.tensor([3, 0, 3]), torch.randn(5, D)
    numbers = numbers_of(held)
    assert torch.equal(rows_of(held, tokens), rows_of(numbers, tokens))
    expected = project(hidden, numbers)
    assert (project(hidden, held) - expected).norm() < 0.02 * expected.norm()


def test_a_table_that_is_to_be_filled_holds_nothing():
    with torch.device("meta"):
        table = embedding_table(10**6, 10**6)
    assert table.is_meta
    assert table.shape == (10**6, 10**6)
    assert not embedding_table(4, D).is_meta
