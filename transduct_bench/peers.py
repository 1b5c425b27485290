"""The peers of `transduct bench`: the same work done by other libraries.

Every function returns one that does the work once and returns how many tokens it generated or
trained on.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transduct.errors import needing

END, IGNORED = 2, -100
Sentence = Sequence[int]
Batches = Sequence[tuple[Sequence[Sentence], Sequence[Sentence]]]  # sources and targets
Run = Callable[[], int]


def ctranslate2_decoding(
    model: str,
    sources: Sequence[Sentence],
    lengths: Sequence[int] | None,
    beam: int,
    precision: str,
    batch: int,
    workers: int,
    threads: int,
    device: str,
) -> Run:
    """CTranslate2 with the same weights; `model` is the output of `transduct convert --format
    ctranslate2`."""
    with needing("ctranslate2"):
        import ctranslate2
    kind, _, index = device.partition(":")
    translator = ctranslate2.Translator(
        model,
        kind,
        device_index=int(index or 0),
        compute_type=precision,
        inter_threads=workers,
        intra_threads=threads,
    )
    pieces = json.loads(next(Path(model).glob("s*_vocabulary.json")).read_text(encoding="utf-8"))
    # it adds the end token itself
    words = [[pieces[token] for token in source] for source in sources]

    def run() -> int:
        jobs = []
        # longest first, to balance the workers
        for group, length in reversed([*groups(words, lengths, batch)]):
            limits = (
                {}
                if length is None
                else {"min_decoding_length": length, "max_decoding_length": length}
            )
            jobs += translator.translate_batch(group, beam_size=beam, asynchronous=True, **limits)
        return sum(len(job.result().hypotheses[0]) + (lengths is None) for job in jobs)

    return run


def transformers_decoding(
    shape: dict[str, Any],
    sources: Sequence[Sentence],
    lengths: Sequence[int],
    beam: int,
    precision: str,
    batch: int,
    threads: int,
    device: str,
) -> Run:
    """`generate` of Hugging Face's Marian, with random weights."""
    import torch

    torch.set_num_threads(threads)
    model = _marian(shape, device).eval().to(getattr(torch, precision))

    def run() -> int:
        written = 0
        for group, length in groups(sources, lengths, batch):
            rows = _padded([[*source, END] for source in group], 0).to(device)
            options: dict[str, Any] = {
                "min_new_tokens": length,
                "max_new_tokens": length,
                "num_beams": beam,
            }
            outputs = model.generate(rows, attention_mask=rows != 0, do_sample=False, **options)
            written += len(group) * (outputs.shape[1] - 1)  # without the begin token
        return written

    return run


def transformers_training(
    shape: dict[str, Any],
    batches: Batches,
    precision: str,
    threads: int,
    device: str,
    compiled: bool = False,
) -> Run:
    """Training of Hugging Face's Marian, optionally compiled with dynamic shapes: forward,
    backward, clipping, fused AdamW."""
    import torch

    torch.set_num_threads(threads)
    model = _marian(shape, device).train()
    if compiled:
        model = torch.compile(model, dynamic=True)

    def loss(source: Any, target: Any) -> Any:
        return model(input_ids=source, attention_mask=source != 0, labels=target).loss

    return _training(model, loss, batches, precision, device)


def torch_training(
    shape: dict[str, Any], batches: Batches, precision: str, threads: int, device: str
) -> Run:
    """Training of `torch.nn.Transformer` with tied embeddings: forward, backward, clipping, fused
    AdamW."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    core = nn.Transformer(
        shape["d_model"],
        shape["num_heads"],
        shape["encoder_layers"],
        shape["decoder_layers"],
        shape["d_ff"],
        shape["dropout"],
        batch_first=True,
    )
    table = nn.Embedding(shape["vocabulary"], shape["d_model"])
    model = nn.ModuleList([core, table]).to(device).train()

    def loss(source: Any, target: Any) -> Any:
        begun = torch.cat((torch.ones_like(target[:, :1]), target[:, :-1].clamp(min=0)), 1)
        future = nn.Transformer.generate_square_subsequent_mask(
            begun.shape[1], device=torch.device(device), dtype=torch.bool
        )
        hidden = core(
            table(source), table(begun), tgt_mask=future, src_key_padding_mask=source == 0,
            memory_key_padding_mask=source == 0, tgt_is_causal=True,
        )  # fmt: skip
        logits = nn.functional.linear(hidden, table.weight).flatten(0, 1)
        return nn.functional.cross_entropy(
            logits.float(), target.flatten(), ignore_index=IGNORED, label_smoothing=0.1
        )

    return _training(model, loss, batches, precision, device)


def _training(
    model: Any, loss: Callable[[Any, Any], Any], batches: Batches, precision: str, device: str
) -> Run:
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rows = [
        (
            _padded([[*s, END] for s in source], 0).to(device),
            _padded([[*t, END] for t in target], IGNORED).to(device),
        )
        for source, target in batches
    ]
    learnt = sum(int((target != IGNORED).sum()) for _, target in rows)

    def run() -> int:
        for source, target in rows:
            with torch.autocast(
                device.split(":")[0], torch.bfloat16, enabled=precision == "bfloat16"
            ):
                value = loss(source, target)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return learnt

    return run


def _marian(shape: dict[str, Any], device: str) -> Any:
    with needing("bench", "transformers"):
        from transformers import MarianConfig, MarianMTModel
    sizes = {"ffn_dim": shape["d_ff"], "attention_heads": shape["num_heads"]}
    sides = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()
    }
    config = MarianConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["d_model"],
        encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"],
        activation_function="relu",
        dropout=shape["dropout"],
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=END,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **sides,
    )
    model: Any = MarianMTModel(config)
    return model.to(device)


def _padded(rows: Sequence[Sentence], value: int) -> Any:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def groups(
    items: Sequence[Any], lengths: Sequence[int] | None, most: int
) -> Iterator[tuple[list[Any], int | None]]:
    """Group consecutive items of equal length, at most `most` at a time, with that length."""
    start = 0
    while start < len(items):
        stop, length = start + 1, None if lengths is None else lengths[start]
        while stop < min(len(items), start + most) and (lengths is None or lengths[stop] == length):
            stop += 1
        yield list(items[start:stop]), length
        start = stop
