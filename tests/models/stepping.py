"""A search's steps beside whole sequences."""

import torch


def assert_steps_equal_whole_sequences(model, state, begin, beam, steps, tokens, expected):
    """Step random tokens, permute the rows within their sources, and let a source leave.

    Args:
        begin: the first token of each source.
        tokens: the range of tokens to draw from.
        expected: (source, tokens) -> the logits after `begin` and these tokens.
    """
    generator = torch.Generator().manual_seed(1)
    owners = [source for source in range(len(begin)) for _ in range(beam)]
    rows = [[] for _ in owners]
    newest = torch.tensor(begin).repeat_interleave(beam)
    for step in range(steps):
        logits, state = model.step(newest, state)
        for owner, row, found in zip(owners, rows, logits, strict=True):
            torch.testing.assert_close(found, expected(owner, row), atol=1e-5, rtol=1e-5)
        newest = torch.randint(*tokens, (len(rows),), generator=generator)
        rows = [[*row, token] for row, token in zip(rows, newest.tolist(), strict=True)]
        groups = [group for group in range(len(rows) // beam) if (step, group) != (2, 1)]
        order = [
            group * beam + int(i)
            for group in groups
            for i in torch.randint(beam, (beam,), generator=generator)
        ]
        state.select(torch.tensor(order))
        owners, rows, newest = [owners[i] for i in order], [rows[i] for i in order], newest[order]
