"""Conversion of SentencePiece models to our tokenizers and back.

A published translation model numbers its pieces by a separate vocabulary, which combines pieces of
the SentencePiece models of both sides and lacks others. `data.pieces` says how a tokenizer keeps
pieces that only one of them has.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from transduct import storage
from transduct.data.pieces import BLANK, HIDDEN
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError, needing, require

UNIGRAM, BPE = 1, 2  # types of models
# Types of pieces; only the first and the last are used to split text.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ENOUGH = 0.5  # the least share of a model's pieces that a vocabulary numbers
LONGEST = 1_000  # characters in a piece
DOUBLE, OUTER = " +", r"\A | \z"  # spaces that SentencePiece removes


def read(path: Path, names: Sequence[str]) -> str:
    """Convert a SentencePiece model to the file contents of a `Tokenizer`.

    Args:
        names: the piece of each id; the first three are unknown, begin and end, whatever their
            names.

    Raises:
        TransductError: if the file is missing, damaged or not a SentencePiece model, uses an
            unsupported feature, or two pieces have the same name.
    """
    model = _parsed(path)
    if reason := _unsupported(model):
        raise TransductError(
            f"{path}: a SentencePiece model with {reason}, which cannot be read; give another model"
        )
    kinds = (NORMAL, USER_DEFINED, *([BYTE] if model.trainer_spec.byte_fallback else []))
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type in kinds}
    entries, listed = (
        [HIDDEN + name for name in Tokenizer.SPECIALS],
        names[len(Tokenizer.SPECIALS) :],
    )
    for name in listed:
        # an ordinary token with the name of one of our specials
        special = HIDDEN if name in Tokenizer.SPECIALS else ""
        entries.append(name if name in scores else HIDDEN + special + name)
    # never found in text
    controls = [HIDDEN + piece.piece for piece in model.pieces if piece.type == CONTROL]
    known = {*listed}
    normal = {piece.piece for piece in model.pieces if piece.type == NORMAL}
    if len(covered := normal & known) < ENOUGH * len(normal):
        raise TransductError(
            f"{path}: the vocabulary holds {100 * len(covered) // len(normal)} % of its pieces; "
            "it is that of another model, or of the other side: copy both files again"
        )
    user = [p.piece for p in model.pieces if p.type == USER_DEFINED and p.piece in known]
    entries += [HIDDEN, *[piece for piece in scores if piece not in known]]
    require(
        len(set(entries)) >= len(entries),
        f"{path}: two of the tokens that it is to cut text into have the same name",
    )
    try:
        text = _written(model, entries, scores, controls, user)
        Tokenizer(text)
    except Exception as error:  # the library raises nothing narrower
        raise TransductError(
            f"{path}: a SentencePiece model that is damaged ({error}); copy it again"
        ) from error
    return text


def pieces_of(path: Path) -> list[str]:
    """The pieces of a SentencePiece model, in its order.

    Raises:
        TransductError: the file is missing, damaged or not a SentencePiece model.
    """
    return [piece.piece for piece in _parsed(path).pieces]


def _written(
    model: Any,
    entries: Sequence[str],
    scores: Mapping[str, float],
    controls: Sequence[str],
    user: Sequence[str],
) -> str:
    """A tokenizer with these entries, in the library's file format."""
    library = tokenizers.Tokenizer(_model(model.trainer_spec, entries, scores))
    library.normalizer = _normalizer(model.normalizer_spec)
    bytes_ = [decoders.ByteFallback()] if model.trainer_spec.byte_fallback else []
    last = [decoders.Fuse(), decoders.Replace(BLANK, " "), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence([decoders.Replace(HIDDEN, ""), *bytes_, *last])
    own = len(Tokenizer.SPECIALS)
    library.add_special_tokens(
        [*entries[:own], *(entry for entry in entries[own:] if entry in controls)]
    )
    # found first, whatever is around them
    library.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in user])
    return library.to_str()


def model_in(text: str) -> dict[str, Any] | None:
    """The parsed file of a tokenizer that was converted from a SentencePiece model, or None for any
    other."""
    content = json.loads(text)
    return content if HIDDEN + Tokenizer.SPECIALS[0] in _entries(content["model"]) else None


def write(content: Mapping[str, Any]) -> bytes:
    """Convert a tokenizer's parsed file back to a SentencePiece model; pieces may change their
    order."""
    model, file = content["model"], _library()[0]()
    trainer, normalizer = file.trainer_spec, file.normalizer_spec
    trainer.model_type = UNIGRAM if model["type"] == "Unigram" else BPE
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 0, 1, 2, -1
    trainer.byte_fallback = model["byte_fallback"]
    parts = {part["type"]: part for part in content["normalizer"]["normalizers"]}
    normalizer.name = "nmt_nfkc" if "Precompiled" in parts else "identity"
    normalizer.precompiled_charsmap = base64.b64decode(
        parts.get("Precompiled", {}).get("precompiled_charsmap", "")
    )
    normalizer.add_dummy_prefix = "Prepend" in parts
    # several `Replace`
    normalizer.remove_extra_whitespaces = len(content["normalizer"]["normalizers"]) > len(parts)
    for number, name in enumerate(Tokenizer.SPECIALS):
        file.pieces.add(piece=name, score=0.0, type=CONTROL if number else UNKNOWN)
    for piece, score in _scores(model).items():
        byte = trainer.byte_fallback and len(piece) == 6 and piece.startswith("<0x")
        file.pieces.add(piece=piece, score=score, type=BYTE if byte else NORMAL)
    trainer.vocab_size = len(file.pieces)
    return file.SerializeToString()


def _library() -> tuple[Any, Any]:
    """The protobuf message of a SentencePiece model, and the exception for a damaged file."""
    with needing("huggingface", "protobuf"):
        from google.protobuf.message import DecodeError
        from google.protobuf.runtime_version import VersionError
    try:
        with needing("huggingface", "sentencepiece"):
            from sentencepiece import sentencepiece_model_pb2
    except VersionError as error:
        raise TransductError(
            f"protobuf is too old ({error}); run: pip install -U protobuf"
        ) from error
    model: Any = sentencepiece_model_pb2
    return model.ModelProto, DecodeError


def _parsed(path: Path) -> Any:
    """The contents of a SentencePiece model."""
    proto, damaged = _library()
    try:
        storage.check_file(path, "a SentencePiece model")
        model = proto.FromString(path.read_bytes())
    except OSError as error:
        raise TransductError(
            f"{path}: cannot be read ({error.strerror}); expected a SentencePiece model"
        ) from error
    except damaged as error:
        raise TransductError(
            f"{path}: not a complete SentencePiece model ({error}); copy it again"
        ) from error
    require(model.pieces, f"{path}: holds no pieces; expected a SentencePiece model")
    return model


def _unsupported(model: Any) -> str | None:
    """A feature of a SentencePiece model that our tokenizers do not support, or None."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    features = {
        "pieces that are neither unigram's nor BPE's": trainer.model_type not in (UNIGRAM, BPE),
        "blanks that are not marked before words": (
            trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces
        ),
        "rules for text that comes out": model.denormalizer_spec.precompiled_charsmap,
        "pieces that are merged through and not used": (
            trainer.model_type == BPE and any(piece.type == UNUSED for piece in model.pieces)
        ),
        f"a score that is not a number, or a piece of more than {LONGEST:,} letters": any(
            not isfinite(piece.score) or len(piece.piece) > LONGEST for piece in model.pieces
        ),
    }
    return next((feature for feature, there in features.items() if there), None)


def _model(trainer: Any, entries: Sequence[str], scores: Mapping[str, float]) -> models.Model:
    if trainer.model_type == UNIGRAM:
        return models.Unigram(
            [(entry, scores.get(entry, 0.0)) for entry in entries], 0, trainer.byte_fallback
        )
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    settings = {"unk_token": entries[0], "fuse_unk": True, "byte_fallback": trainer.byte_fallback}
    return models.BPE(vocabulary, _merges(scores), **settings)


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that merge into a third, the best first."""
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += [(left, right) for left, right in halves if left in scores and right in scores]
    return merges


def _normalizer(rules: Any) -> normalizers.Normalizer:
    parts: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        parts.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        parts += [normalizers.Replace(Regex(DOUBLE), " "), normalizers.Replace(Regex(OUTER), "")]
    if rules.add_dummy_prefix:
        parts.append(normalizers.Prepend(BLANK))
    return normalizers.Sequence([*parts, normalizers.Replace(" ", BLANK)])


def _entries(model: Mapping[str, Any]) -> dict[str, float]:
    """The entries of a tokenizer's model and their scores, which are all 0 for BPE."""
    vocabulary = model["vocab"]
    return dict(vocabulary) if model["type"] == "Unigram" else dict.fromkeys(vocabulary, 0.0)


def _scores(model: Mapping[str, Any]) -> dict[str, float]:
    """The pieces used to split text and their scores; in BPE, earlier merges score higher."""
    scores = {
        piece: score for piece, score in _entries(model).items() if not piece.startswith(HIDDEN)
    }
    if model["type"] != "Unigram":
        ranks = {
            left + right: -rank for rank, (left, right) in reversed([*enumerate(model["merges"])])
        }
        scores = {piece: float(ranks.get(piece, -len(model["merges"]))) for piece in scores}
    return scores
