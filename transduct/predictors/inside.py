"""The inside of one sentence as plain values: what the page and `transduct inspect` show.

Numbers are of the plain formula. Large ones travel as 16-bit integers in base64, one map at a time.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduct.blocks.attention import AttentionPositions, MultiHeadAttention
from transduct.blocks.embeddings import PositionVectors
from transduct.data.tokenizer import Tokenizer
from transduct.drawing import models as parts_of
from transduct.errors import require
from transduct.functional import positions as schemes
from transduct.predictors.base import Attention, Trace, configuration
from transduct.predictors.languages import Languages
from transduct.predictors.long_texts import WORD_STARTS, without_blanks
from transduct.records import record
from transduct.storage import CONFIG, WEIGHTS, read_tensors

BYTE = re.compile("<0x([0-9A-F]{2})>")
LIKELIEST = 10  # tokens that are named at each step
TEMPERATURES = tuple(n / 10 for n in range(1, 21))
NOTHING = -1e4  # the logarithm of no probability, which JSON can hold
FARTHEST = 64  # positions and distances that are shown
EXACT = 32767  # the largest 16-bit integer


def shown(
    model: Any,
    view: str,
    text: str,
    target: str | Sequence[int] | None = None,
    name: str | None = None,
    prefix: Sequence[int] = (),
    **options: Any,
) -> dict[str, Any]:
    """What a view shows of a sentence.

    Args:
        view: one of `NAMES`.
        target: as for the model's `traced`.
        name: of the attention map, for the view "attention".
        prefix: the tokens that an own translation goes on from.
        options: as for `traced`, such as languages or a beam.

    Raises:
        TransductError: there is no such view or map, or the model has none.
    """
    require(view in NAMES, f"unknown view '{view:.40}'; known are: {', '.join(NAMES)}")
    require("attention" in model.verbs, "this model has no attention to show; ask another one")
    if view == "beam":
        return _beam(model, text, prefix, options)
    fixed = {key: value for key, value in options.items() if key.endswith("_language")}
    if prefix and target is None:
        search = "translate" in model.verbs
        own = model.translate([text], prefixes=[prefix], **options)[0].tokens if search else prefix
        target, options = own, fixed
    trace: Trace = model.traced(text, target, **options)
    if view == "attention":
        known = trace.attention
        found = f"unknown name '{name}'" if name else "the view needs a name"
        require(name in known, f"{found}; known are: {', '.join(known)}")
        return {"name": name, **packed(known[str(name)])}
    return VIEWS[view](model, trace)


def everything(model: Any, text: str, directory: Path, *given: Any, **options: Any) -> Any:
    """All that the views show of a sentence, by view, and by name for attention."""
    found = {"sentence": shown(model, "sentence", text, *given, **options)}
    fixed = {key: value for key, value in options.items() if key.endswith("_language")}
    target = found["sentence"]["tokens"] or None
    for view in found["sentence"]["views"]:
        if view == "attention":
            found |= {
                f"attention {each['name']}": shown(model, view, text, target, each["name"], **fixed)
                for each in found["sentence"]["maps"]
            }
        elif view == "model":
            found[view] = counted(*settings(directory))
        elif view == "beam":
            found[view] = shown(model, view, text, **options)
        else:
            found[view] = shown(model, view, text, target, **fixed)
    return found


def panels(found: Attention, name: str | None = None) -> dict[str, Any]:
    """The pictures of what was looked at, as each task draws them, and one map if it is named.

    Raises:
        TransductError: there is no such map.
    """
    require(name is None or name in found, f"unknown name '{name}'; known are: {', '.join(found)}")
    drawn = [
        {
            "title": each.title,
            "rows": each.rows,
            "columns": each.columns,
            "query": each.query,
            **packed(each.weights),
        }
        for each in found.panels()
    ]
    heads = {name: len(weights) for name, weights in found.items()}
    about = {"names": [*found], "heads": heads, "panels": drawn}
    return about | ({"map": {"name": name, **packed(found[name])}} if name else {})


def packed(values: Tensor) -> dict[str, Any]:
    """Numbers as 16-bit integers, little end first, in base64: each times `scale` / 32767."""
    scale = max(float(values.abs().max()) if values.numel() else 0.0, 1e-9)
    whole = (values.double() / scale * EXACT).round().to(torch.int16)
    data = base64.b64encode(whole.cpu().numpy().astype("<i2").tobytes()).decode()
    return {"shape": list(values.shape), "scale": scale, "data": data}


# labels


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens of a text in readable form: `text`, and the numbers `first` and `last`.

    The bytes of a character are one piece. Bytes that are none have their number as `byte`, and
    special tokens their name as `special`.
    """
    found: list[dict[str, Any]] = []
    run = bytearray()
    names = tokenizer.pieces(ids)
    for place, (token, name) in enumerate(zip(ids, names, strict=True)):
        value = tokenizer.bytes.get(token)
        if value is None and (match := BYTE.fullmatch(name)):
            value = int(match[1], 16)
        if value is None:
            special = {"special": name} if token < len(Tokenizer.SPECIALS) else {}
            found.append({"text": name.replace("Ġ", "▁"), "first": place, "last": place, **special})
            run.clear()
            continue
        run.append(value)
        found.append({"text": "", "byte": f"{value:02X}", "first": place, "last": place})
        for start in range(max(0, len(run) - 4), len(run)):
            character = bytes(run[start:]).decode("utf-8", "ignore")
            if len(character.encode()) == len(run) - start:
                whole = {"text": character.replace(" ", "▁"), "last": place}
                found[start - len(run) :] = [{**whole, "first": place - (len(run) - start) + 1}]
                run.clear()
                break
    return found


def words(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The words that some pieces are, each with its `first` and `last` token."""
    made: list[dict[str, Any]] = []
    alone = True  # whether the last word takes no more
    for piece in found:
        shown = piece["text"].lstrip("".join(WORD_STARTS))
        starts = shown != piece["text"] or without_blanks(shown)
        mark = bool(shown) and not (shown[0].isalnum() or shown[0] in "'’")
        blank = bool(made) and not made[-1]["text"]  # a mark of a word's start, by itself
        begins = alone or (starts and not blank) or (mark and not blank)
        if piece.get("special") or begins:
            made.append({**piece, "text": shown})
        else:
            made[-1] |= {"text": made[-1]["text"] + shown, "last": piece["last"]}
        alone = bool(piece.get("special")) or mark
    return made


def _side(tokenizer: Tokenizer, ids: Sequence[int]) -> dict[str, Any]:
    found = pieces(tokenizer, ids)
    return {"pieces": found, "words": words(found)}


# views


def _sentence(model: Any, trace: Trace) -> dict[str, Any]:
    source, target = trace.tokenizers
    counted = trace.attention.items()
    tokens = [*trace.written[trace.given : -1]]
    sides = {
        "source": _side(source, trace.source),
        "read": _side(target, trace.read),
        "written": _side(target, trace.written),
    }
    maps = [{"name": name, "heads": len(weights)} for name, weights in counted]
    views = ["attention", *(["next"] if trace.written else [])]
    views += ["beam"] if "translate" in model.verbs else []
    return {
        "sides": sides,
        "maps": maps,
        "tokens": tokens,
        "text": target.decode([tokens])[0] if tokens else "",
        "given": trace.given,
        "views": [*views, "positions", "model"],
    }


def _next(_: Any, trace: Trace) -> dict[str, Any]:
    """The likeliest tokens at each step: logarithms of their probabilities, and that of the sum of
    all others' powers 1 / t for each temperature t, with which any of them is computed."""
    assert trace.logits is not None
    logs = trace.logits.double().log_softmax(-1)  # (T, V)
    best, ids = logs.topk(min(LIKELIEST, logs.shape[-1]))
    others = logs.scatter(1, ids, float("-inf"))
    rest = torch.stack([(others / t).logsumexp(-1) for t in TEMPERATURES], -1)  # (T, temperatures)
    written = torch.tensor(trace.written, dtype=torch.int64)[:, None]
    chosen = logs.gather(1, written)
    places = (logs > chosen).sum(-1).tolist()
    steps = [
        {
            "ids": row,
            "labels": [pieces(trace.tokenizers[1], [token])[0] for token in row],
            "logs": some,
            "rest": more,
            "chosen": {"id": int(token), "log": float(log), "place": place},
        }
        for row, some, more, token, log, place in zip(
            ids.tolist(),
            _rounded(best),
            _rounded(rest.clamp(min=NOTHING)),
            written[:, 0],
            chosen[:, 0],
            places,
            strict=True,
        )
    ]
    return {"temperatures": TEMPERATURES, "steps": steps}


def _beam(
    model: Any, text: str, prefix: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    require("translate" in model.verbs, "this model has no beam to show; ask one that translates")
    found = model.searched(text, prefix, **options)
    nodes = [
        {
            "parent": node.parent,
            "label": pieces(model.target_tokenizer, [node.token])[0],
            "id": node.token,
            "score": round(node.score, 5),
            "place": node.place,
            "fate": node.fate,
            **({"divisor": round(node.divisor, 5)} if node.divisor is not None else {}),
        }
        for node in found.nodes
    ]
    return {
        "beam": found.beam,
        "alpha": found.alpha,
        "rule": found.rule,
        "nodes": nodes,
        "winner": found.winner,
    }


def _positions(model: Any, trace: Trace) -> dict[str, Any]:
    """The scheme of a model, `vectors` of it (a row a position, or a distance), and what attention
    sees of a distance: one line, or one for each head."""
    longest = max(len(trace.source), len(trace.read))
    count = min(max(longest, FARTHEST // 2), FARTHEST, model.model.config.max_length)
    places = torch.arange(count)
    distances = torch.arange(1 - count, count)
    for part in model.model.modules():
        if isinstance(part, PositionVectors):
            device = next(model.model.parameters()).device
            lengths = torch.full_like(places, count)
            vectors = part(places.to(device), lengths.to(device)).detach().float().cpu()
            products = vectors @ vectors.T
            lines = torch.stack([products.diagonal(int(d)).mean() for d in distances])[None]
            return _scheme(part.scheme, "position", vectors, distances, lines)
        if isinstance(part, MultiHeadAttention):
            inside = part.positions
            if inside is not None and inside.for_keys is None:  # else its vectors come later
                return _of_attention(part, inside, places, distances)
    return {"scheme": "none"}


def _of_attention(
    part: MultiHeadAttention, inside: AttentionPositions, places: Tensor, distances: Tensor
) -> dict[str, Any]:
    if inside.scheme == "rotary":
        angles = places[:, None] * schemes.frequencies(part.d_k)
        lines = schemes.dot_product_by_distance(distances, part.d_k)[None]
        return _scheme("rotary", "position", angles.cos(), distances, lines)
    if inside.scheme == "alibi":
        lines = -schemes.alibi_slopes(part.num_heads)[:, None] * distances.abs()
        return _scheme("alibi", "head", lines, distances, lines)
    table = inside.table
    if inside.scheme == "bucketed" and table is not None:
        found = schemes.buckets_of(distances, len(table), inside.farthest, inside.causal)
        lines = table.detach().float().cpu()[found].T
        return _scheme("bucketed", "head", lines, distances, lines)
    assert table is not None
    vectors, reach = table.detach().float().cpu(), len(table) // 2
    lines = (vectors @ vectors[reach])[None]
    return _scheme("relative", "distance", vectors, torch.arange(-reach, reach + 1), lines)


def _scheme(
    scheme: str, rows: str, vectors: Tensor, distances: Tensor, lines: Tensor
) -> dict[str, Any]:
    return {
        "scheme": scheme,
        "rows": rows,
        "vectors": packed(vectors),
        "distances": distances.tolist(),
        "lines": _rounded(lines),
    }


def settings(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings of the model in a directory, and its weights.

    Raises:
        TransductError: it is an ensemble.
    """
    config = configuration(directory)
    require(
        (directory / WEIGHTS).exists(),
        f"{directory}: holds no {WEIGHTS}, as an ensemble does; describe one of its members",
    )
    weights = read_tensors(directory / WEIGHTS)
    shape = {name: value for name, value in config.get("model", {}).items() if value is not None}
    about = {"task": config["task"], "family": config.get("family", "-"), **shape}
    if frozen := config.get("frozen"):
        about["frozen"] = frozen
    if known := config.get("languages"):
        languages = record(Languages, known, "languages", str(directory / CONFIG))
        about["languages"] = languages.shown()
    return about, weights


def counted(about: dict[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings and parts of a model, and the boxes of its drawing."""
    parts = [
        {
            "name": part.name,
            "shape": part.shape,
            "layers": len(part.layers),
            "parameters": part.parameters,
        }
        for part in parts_of.parts(weights)
    ]
    return {"about": about, "parts": parts, "columns": parts_of.columns(weights)}


def _rounded(values: Tensor) -> list[Any]:
    """Five digits after the point."""
    return (values.double() * 1e5).round().div(1e5).tolist()


VIEWS: dict[str, Callable[[Any, Trace], dict[str, Any]]] = {
    "sentence": _sentence,
    "next": _next,
    "positions": _positions,
}
NAMES = (*VIEWS, "attention", "beam")
