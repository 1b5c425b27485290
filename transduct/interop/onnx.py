"""Exports the Transformer as two ONNX graphs, the encoder and one decoder step, for onnxruntime and
other runtimes.

Let B be sources, S the tokens of the longest, R = B * beam the rows of a search, T the tokens each
row has so far, L decoder layers, H heads, G key heads, K and V the widths of keys and values, D the
model width.
"""

import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_in
from transduct.errors import TransductError, needing
from transduct.interop import sentencepiece
from transduct.interop.export import for_tool, loaded
from transduct.models.transformer import Transformer

LARGEST = 2**31  # bytes, the size limit of a protobuf file
SOURCE, PAST, HELD = (
    {0: "sources"},
    {1: "sources", 2: "rows", 4: "tokens"},
    {1: "sources", 3: "length"},
)


def convert(directory: Path, out: Path) -> None:
    """Write the translation model in a model directory as `encoder.onnx` and `decoder.onnx` with
    its tokenizers.

    The `config.json` beside them holds what else a search needs (docs/onnx.md implements one).

    Raises:
        TransductError: if the model is not a translation Transformer, is already quantised or is
            too large for a single-file graph, or `out` exists.
    """
    for library in ("onnx", "onnxscript"):
        with needing("onnx"):
            import_module(library)
    settings, config = for_tool("ONNX", directory, out)
    model = loaded(directory, config).eval().requires_grad_(False)
    if (size := sum(4 * weight.numel() for weight in model.parameters())) >= LARGEST:
        raise TransductError(
            f"{directory}: {size:,} bytes of weights; a graph in one file holds fewer than "
            f"{LARGEST:,}"
        )
    part: Any
    for part in model.modules():
        # cache position tables, so that they are looked up
        if hasattr(part, "scheme") and hasattr(part, "remember"):
            part.remember(torch.float32)
    shape = (config.decoder_layers, 2, 3, config.num_kv_heads or config.num_heads, 4)
    pasts = [torch.zeros(*shape, width) for width in (config.key_width, config.value_width)]
    source, lengths = torch.full((2, 5), Tokenizer.END), torch.tensor([5, 3])
    encoder, step, paths = EncoderGraph(model), StepGraph(model), tokenizers_in(directory)
    memory = encoder(source, lengths)
    settings_out = {
        "source_size": config.source_size,
        "sentencepiece": sentencepiece.model_in(paths[0].read_text(encoding="utf-8")) is not None,
        "begin": Tokenizer.BEGIN,
        "end": Tokenizer.END,
        "max_length": config.max_length,
        "decoder_layers": config.decoder_layers,
        "num_kv_heads": shape[3],
        "d_k": config.key_width,
        "d_v": config.value_width,
        "replace": settings.get("replace", []),
        "decoding": settings.get("decoding", {}),
    }
    content = {
        "encoder.onnx": graph(encoder, source, lengths),
        "decoder.onnx": graph(step, torch.full((2, 3), Tokenizer.BEGIN), *pasts, *memory, lengths),
        storage.CONFIG: storage.pack_json(settings_out),
        **{path.name: path.read_bytes() for path in paths},
    }
    storage.write_directory(out, content)


def graph(module: "EncoderGraph | StepGraph", *inputs: Tensor) -> bytes:
    """Export a module with example inputs as an ONNX file; the dimensions named in its `INPUTS` are
    dynamic."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns when torchvision is missing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter uses deprecated names of PyTorch
            program = torch.onnx.export(
                module.eval(),
                inputs,
                dynamo=True,
                verbose=False,
                input_names=list(module.INPUTS),
                output_names=list(module.OUTPUTS),
                dynamic_shapes=list(module.INPUTS.values()),
            )
    finally:
        log.setLevel(level)
    assert program is not None
    written = program.model_proto
    for part in (written.graph, *written.graph.node, *written.functions):
        del part.metadata_props[:]  # source locations of the operations
    return written.SerializeToString()


class EncoderGraph(nn.Module):
    """The encoder, with the keys and values of each decoder layer's cross-attention as outputs."""

    INPUTS = {"source": {0: "sources", 1: "length"}, "lengths": SOURCE}
    OUTPUTS = ("keys", "values")

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, S), padded with anything, and lengths (B,) -> keys (L, B, G, S, K) and values
        (L, B, G, S, V)."""
        count, longest = source.shape
        places = torch.arange(longest)
        positions = places.expand(count, longest).flatten()
        token_lengths = lengths[:, None].expand(count, longest).flatten()
        x = self.model.source_embedding(source.flatten(), positions, token_lengths)
        mask = padding_mask(lengths, longest)
        layer: Any
        for layer in self.model.encoder:

            def attend(y: Tensor, attention: Any = layer.self_attention) -> Tensor:
                parts = attention.project(y, positions, token_lengths)  # (N, heads, width) each
                query, key, value = (
                    part.view(count, longest, *part.shape[1:]).transpose(1, 2) for part in parts
                )
                # (B, H, S, V)
                heads = attended(query, key, value, mask + position_bias(attention, query, longest))
                return attention.output(heads.transpose(1, 2).flatten(2).flatten(0, 1))

            x = layer.around_feed_forward(layer.around_attention(x, attend), layer.feed_forward)
        x = self.model.encoder_norm(x)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for layer in self.model.decoder:
            cross = layer.cross_attention
            for into, linear in ((keys, cross.key), (values, cross.value)):
                # (B, G, S, width)
                into.append(linear(x).view(count, longest, cross.num_kv_heads, -1).transpose(1, 2))
        return torch.stack(keys), torch.stack(values)


class StepGraph(nn.Module):
    """One decoder step: from the newest token of each row to the log-probabilities of the next."""

    INPUTS = {
        "tokens": {0: "sources", 1: "rows"},
        "past_keys": PAST,
        "past_values": PAST,
        "keys": HELD,
        "values": HELD,
        "lengths": SOURCE,
    }
    OUTPUTS = ("scores", "new_keys", "new_values")

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B, beam), KV cache (L, B, beam, G, T, K) and (L, B, beam, G, T, V), and the
        outputs of `EncoderGraph` -> log-probabilities (B, beam, target vocabulary), and the KV
        cache with one more token."""
        (count, rows), place = tokens.shape, past_keys.shape[4]
        positions = torch.full((count * rows,), place)  # (R,)
        x = self.model.target_embedding(tokens.flatten(), positions)  # (R, D)
        mask = padding_mask(lengths, keys.shape[3])
        new_keys, new_values = [], []
        layer: Any
        for i, layer in enumerate(self.model.decoder):

            def attend(y: Tensor, attention: Any = layer.self_attention, i: int = i) -> Tensor:
                query, key, value = (
                    part.unsqueeze(2) for part in attention.project(y, positions, None)
                )
                key = torch.cat((past_keys[i].flatten(0, 1), key), 2)  # (R, G, T + 1, K)
                value = torch.cat((past_values[i].flatten(0, 1), value), 2)
                new_keys.append(key.view(count, rows, *key.shape[1:]))
                new_values.append(value.view(count, rows, *value.shape[1:]))
                # (R, H, 1, V)
                heads = attended(query, key, value, position_bias(attention, query, place + 1))
                return attention.output(heads.flatten(1))

            def attend_source(
                y: Tensor, attention: Any = layer.cross_attention, i: int = i
            ) -> Tensor:
                query = (
                    attention.query(y).view(count, rows, attention.num_heads, -1).transpose(1, 2)
                )  # (B, H, beam, K)
                heads = attended(query, keys[i], values[i], mask)  # (B, H, beam, V)
                return attention.output(heads.transpose(1, 2).flatten(2).flatten(0, 1))

            x = layer.around_cross(layer.around_attention(x, attend), attend_source)
            x = layer.around_feed_forward(x, layer.feed_forward)
        # (R, target vocabulary)
        scores = self.model.logits(self.model.decoder_norm(x)).log_softmax(-1)
        scores = scores.index_fill(1, torch.tensor(Tokenizer.UNWRITTEN), float("-inf"))
        return scores.view(count, rows, -1), torch.stack(new_keys), torch.stack(new_values)


def attended(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Scaled dot-product attention with grouped heads: (B, H, T, K), (B, G, S, K), (B, G, S, V) ->
    (B, H, T, V)."""
    groups = query.shape[1] // key.shape[1]
    # (.., H, S, K), (.., H, S, V)
    key, value = (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
    return (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + bias).softmax(-1) @ value


def position_bias(attention: Any, query: Tensor, keys: int) -> Tensor:
    """The position bias of the attention scores of queries (B, H, T, K) over this many keys; zero
    if there is none."""
    bias = attention.positions.bias if attention.positions else None
    return torch.zeros(()) if bias is None else bias(query, keys)


def padding_mask(lengths: Tensor, longest: int) -> Tensor:
    """(B,) -> (B, 1, 1, S): minus infinity at padding, zero elsewhere."""
    return torch.where(torch.arange(longest) < lengths[:, None], 0.0, float("-inf"))[:, None, None]
