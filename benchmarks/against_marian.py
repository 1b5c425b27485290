"""Training and decoding speed against Hugging Face's MarianMTModel of the same size, interleaved in one run.

python benchmarks/against_marian.py --source train.en.gz --target train.de.gz [--size tiny] [--precision bfloat16]

Both see the same token ids, sorted by length into batches of the same sentences, with dropout 0.1 and random weights.
Training: forward, backward, clipping, fused AdamW; target tokens a second. Decoding: greedy, every output 1.13
times as long as the mean source of its batch. Prints medians over the rounds and ratios, as JSON.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from transduct.data.batching import plan
from transduct.data.text import read_lines
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.engine import DecodingConfig, generate
from transduct.models.transformer import SIZES, Config, Transformer
from transduct.tasks.translation import Batch, make_batch
from transduct.training.machine import prepare_machine

VOCABULARY = 8000
Rows = list[list[int]]


def marian(size: str, device: torch.device) -> MarianMTModel:
    """Marian of the same shape, tied embeddings, randomly initialised."""
    shape = SIZES[size]
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=shape["d_model"],
        encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"],
        encoder_attention_heads=shape["num_heads"],
        decoder_attention_heads=shape["num_heads"],
        encoder_ffn_dim=shape["d_ff"],
        decoder_ffn_dim=shape["d_ff"],
        activation_function="relu",
        dropout=0.1,
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).to(device)


def padded(rows: Rows, value: int) -> torch.Tensor:
    """Lists of ids as a padded array."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def training_steps(
    size: str, batches: list[tuple[Rows, Rows]], precision: str, device: torch.device
) -> dict[str, Callable[[int], None]]:
    """A function for each side that takes one training step on batch i."""
    from transduct.functional.losses import projected_cross_entropy

    ours = Transformer(Config(VOCABULARY, VOCABULARY, **SIZES[size])).to(device).train()
    theirs = marian(size, device).train()
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for m in (ours, theirs)]
    flat: list[Batch] = [make_batch(*batch).to(device) for batch in batches]
    dense = [
        (padded([[*s, 2] for s in source], 0).to(device), padded([[*t, 2] for t in target], -100).to(device))
        for source, target in batches
    ]

    def finish(model: torch.nn.Module, optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    def step_ours(i: int) -> None:
        b = flat[i]
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            memory = ours.encode(b.source, b.source_segments)
            hidden = ours.decode(b.inputs, b.target_segments, memory, b.source_segments)
            loss, _ = projected_cross_entropy(hidden, ours.output_table, b.outputs, 0.0)
        finish(ours, optimisers[0], loss / b.target_segments.total)

    def step_theirs(i: int) -> None:
        source, target = dense[i]
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = theirs(input_ids=source, attention_mask=source != 0, labels=target).loss
        finish(theirs, optimisers[1], loss)

    return {"ours": step_ours, "peer": step_theirs}


def decoders(size: str, batches: list[tuple[Rows, Rows]], device: torch.device) -> dict[str, Callable[[int], None]]:
    """A function for each side that decodes batch i greedily to a forced length."""
    ours = Transformer(Config(VOCABULARY, VOCABULARY, **SIZES[size])).to(device).eval()
    theirs = marian(size, device).eval()

    def limit(i: int) -> int:
        source = batches[i][0]
        return round(1.13 * sum(map(len, source)) / len(source))

    def decode_ours(i: int) -> None:
        sources = [[*s, 2] for s in batches[i][0]]
        config = DecodingConfig(beam=1, batch_tokens=10**9)
        generate(ours, sources, [limit(i) + 1] * len(sources), config, 1, 2, forbidden=[2])

    def decode_theirs(i: int) -> None:
        source = padded([[*s, 2] for s in batches[i][0]], 0).to(device)
        arguments: dict[str, Any] = {"min_new_tokens": limit(i), "max_new_tokens": limit(i), "num_beams": 1}
        theirs.generate(source, attention_mask=source != 0, do_sample=False, **arguments)

    return {"ours": decode_ours, "peer": decode_theirs}


def interleaved(sides: dict[str, Callable[[int], None]], tokens: list[int], rounds: int) -> dict[str, float]:
    """Median tokens a second of each side over the rounds, one side after the other in each."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            started = time.perf_counter()
            for i in range(len(tokens)):
                run(i)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                rates[name].append(sum(tokens) / (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--size", default="tiny", choices=list(SIZES))
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    prepare_machine()
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    texts = [list(read_lines(path)) for path in (arguments.source, arguments.target)]
    tokenizer = Tokenizer.train((text for side in texts for text in side), "bpe", VOCABULARY)
    rows = [tokenizer.encode(side) for side in texts]
    import numpy as np

    lengths = np.array([[len(s) + 1, len(t) + 1] for s, t in zip(*rows, strict=True)])
    chosen = plan(lengths, 1, 0, arguments.batch_tokens)[:4]
    batches = [([rows[0][i] for i in batch], [rows[1][i] for i in batch]) for batch in chosen]
    target_tokens = [sum(len(t) + 1 for t in target) for _, target in batches]
    output_tokens = [len(s) * round(1.13 * sum(map(len, s)) / len(s)) for s, _ in batches]
    result = []
    for name, sides, tokens in (
        ("train", training_steps(arguments.size, batches, arguments.precision, device), target_tokens),
        ("decode greedy", decoders(arguments.size, batches, device), output_tokens),
    ):
        rates = interleaved(sides, tokens, arguments.rounds)
        result.append({"name": name, **rates, "ratio": rates["ours"] / rates["peer"]})
        print(json.dumps(result[-1]), flush=True)
    print(json.dumps({"torch": torch.__version__, "machine": platform.platform(), **vars(arguments)}, default=str))


if __name__ == "__main__":
    main()
