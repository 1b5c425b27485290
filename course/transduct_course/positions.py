"""Ways to number places, and the weakness of each: trained on short rows, tested on long ones."""

import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.drawing.plots import GAP, MARGIN, curves
from transduct.drawing.svg import Photograph, Picture, Shape, Text, moved
from transduct.functional import positions as formulas
from transduct_course import small
from transduct_course.distance import of_symbols
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, mean

SYMBOLS, TRAINED, COUNT, WIDTH = 12, 16, 5000, 128
SCHEMES = (
    "none",
    "index",
    "normalised_index",
    "binary",
    "one_hot",
    "learned",
    "sinusoidal",
    "sinusoidal_concatenated",
    "rotary",
    "alibi",
    "relative",
)
EXACT = "donot_use_mm_for_euclid_dist"
QUICK = ("none", "index", "one_hot", "sinusoidal", "relative")


def echoed(shortest: int, longest: int) -> small.Draw:
    """Rows of symbols, and the same again in reverse order: places must be told apart."""

    def draw(random: Random) -> small.Pair:
        length = random.randint(shortest, longest)
        row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(length)]
        return row, row[::-1]

    return draw


def vectors(scheme: str, count: int) -> Tensor | None:
    """The vectors of the first positions by their formula; none where a scheme has no such
    vectors."""
    places = torch.arange(count)
    match scheme:
        case "index":
            return formulas.index(places)
        case "normalised_index":
            return formulas.normalised_index(places, torch.full_like(places, count))
        case "binary":
            return formulas.binary(places, max(1, (count - 1).bit_length()))
        case "one_hot":
            return formulas.one_hot(places, count)
        case "sinusoidal":
            return formulas.sinusoidal(places, WIDTH)
        case "sinusoidal_concatenated":
            return formulas.sinusoidal_concatenated(places, WIDTH)
        case _:
            return None


def least_distance(rows: Tensor) -> float:
    """The least distance between any two rows, exactly, a block at a time."""
    least = math.inf
    for start in range(0, len(rows), 500):
        far = torch.cdist(
            rows[start : start + 500], rows, compute_mode="donot_use_mm_for_euclid_dist"
        )
        own = torch.arange(start, start + len(far))
        far[torch.arange(len(far)), own] = math.inf
        least = min(least, float(far.min()))
    return least


def measure(setting: Setting) -> Iterator[Row]:
    """The vectors themselves, and models trained with them on rows of up to 16 symbols."""
    steps = setting.pick(1500, 400, 3)
    lengths = setting.pick((8, 16, 20, 24, 32, 48), (8, 16, 24), (8, 16))
    for scheme in setting.pick(SCHEMES, QUICK, ("none", "sinusoidal")):
        found = vectors(scheme, setting.pick(COUNT, COUNT, 50))
        about: dict[str, Any] = {"scheme": scheme, "least": None, "largest": None}
        if found is not None:
            about |= {"least": least_distance(found), "largest": float(found.abs().max())}
        for seed in setting.seeds:
            setting.report(f"positions: {scheme}, seed {seed}")
            model = small.seeded(seed, lambda: built(scheme))  # noqa: B023
            small.train(model, small.batches(echoed(2, TRAINED), 32, seed), steps, 2e-3, seed=seed)
            right = {
                length: of_symbols(model, small.pairs(echoed(length, length), 100, "test"))
                for length in lengths
            }
            yield {
                **about,
                "seed": seed,
                "short": right[TRAINED],
                "long": right[lengths[-1]],
                "lengths": [*right],
                "by_length": [*right.values()],
            }


def built(scheme: str) -> Any:
    """A Transformer with these positions, for at most 64 tokens."""
    return small.transformer_of(SYMBOLS, positions=scheme, max_length=64)


@dataclass(frozen=True, eq=False)
class Pixels(Photograph):
    """A heat map as a photograph with a dot for each number, which needs no extra."""

    def png(self) -> bytes:
        """The pixels as a PNG file (RFC 2083)."""
        height, width = self.pixels.shape[:2]
        lines = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in self.pixels)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )


def heat(title: str, values: Tensor, width: float, height: float) -> Picture:
    """A heat map from blue (-1) through white (0) to red (1)."""
    part = values.clamp(-1, 1)[..., None].numpy()
    blue, red = np.array((27, 79, 143)), np.array((152, 24, 47))
    mixed = np.where(part < 0, 247 + (247 - blue) * part, 247 - (247 - red) * part)
    dots = Pixels(0, 20, width, height, np.rint(mixed).astype(np.uint8))
    return Picture(width, height + 20, (Text(0, 12, title, 12, bold=True), dots))


def draw(rows: Sequence[Row]) -> Picture:
    """Accuracy by length; beneath it the heat maps of the notes, 128 positions of 512 numbers in
    both layouts, their dot products, and how these fall with distance."""
    lengths = rows[0]["lengths"]
    lines = {
        scheme: [
            100 * mean([{"y": row["by_length"][i]} for row in rows if row["scheme"] == scheme], "y")
            for i in range(len(lengths))
        ]
        for scheme in dict.fromkeys(row["scheme"] for row in rows)
    }
    top = curves(lengths, lines, f"Reversal, % right, trained on 2 to {TRAINED} symbols", "length")
    places = torch.arange(128)
    interleaved = formulas.sinusoidal(places, 512)
    parts = [
        heat("sin and cos interleaved: 128 positions x 512", interleaved, 512, 128),
        heat("all sines, then all cosines (July 2020)",
             formulas.sinusoidal_concatenated(places, 512), 512, 128),
        heat("dot products of 128 positions", interleaved @ interleaved.T / 256, 256, 256),
    ]  # fmt: skip
    away = torch.arange(128)
    fall = curves(
        away, {"PE(t) . PE(t + d)": formulas.dot_product_by_distance(away, 512)},
        "The dot product falls with the distance d", "d",
    )  # fmt: skip
    shapes: list[Shape] = [*top.shapes]
    y = top.height
    for part in (*parts, fall):
        left = 0.0 if part is fall else MARGIN
        shapes += moved(part.shapes, left, y)
        y += part.height + GAP
    return Picture(max(top.width, 512 + 2 * MARGIN, fall.width), y, tuple(shapes))


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if sinusoids are all different and bounded and still work beyond the trained length;
    the notes leave the last point open."""
    means: Mapping[str, tuple[float, float]] = {
        scheme: (mean(rows, "short", scheme=scheme), mean(rows, "long", scheme=scheme))
        for scheme in dict.fromkeys(row["scheme"] for row in rows)
    }
    least, (short, long) = mean(rows, "least", scheme="sinusoidal"), means["sinusoidal"]
    best = max(means, key=lambda scheme: means[scheme][1])
    longest = rows[0]["lengths"][-1]
    bounded = Words(
        f"no two of the sinusoids are nearer than {least:.2f} and no number exceeds 1",
        f"어느 두 위치의 사인 벡터도 {least:.2f}보다 가깝지 않고 값은 1을 넘지 않는다",
    )
    beyond = Words(
        f"of rows of {longest} symbols sinusoids get {long:.0%} right ({short:.0%} at {TRAINED}); "
        f"the best is {best} with {means[best][1]:.0%}",
        f"기호 {longest}개에서 사인은 {long:.0%}를 맞힌다({TRAINED}개에서는 {short:.0%}). "
        f"가장 나은 것은 {best}로 {means[best][1]:.0%}다",
    )
    return [
        Verdict.of(least > 0.1, bounded, Words("distinct and bounded", "서로 다르고 유계다")),
        Verdict.of(
            long > 0.9 * short, beyond, Words("beyond the trained length", "학습한 길이를 넘어서")
        ),
    ]


EXPERIMENT = Experiment(
    "positions",
    Words(
        "Index, normalised, binary and one-hot positions each have a weakness that sinusoids do "
        "not.",
        "순번, 정규화한 순번, 이진수, 원-핫은 저마다 약점이 있고 사인·코사인 위치 인코딩에는 그 "
        "약점이 없다.",
    ),
    Words(
        "For each scheme, the least distance between any two of 5,000 positions and the largest "
        "number are computed. Transformers trained with it on short rows are tested on longer "
        "ones.",
        "방식마다 5,000개 위치 가운데 가장 가까운 둘의 거리와 가장 큰 수를 계산한다. 그 방식으로 "
        "짧은 기호열에서 학습한 Transformer를 더 긴 기호열에서 시험한다.",
    ),
    keys={"scheme": Words("positions", "위치 인코딩")},
    values={
        "least": Words("least distance", "가장 가까운 거리"),
        "largest": Words("largest number", "가장 큰 수"),
        "short": Words("right, trained length", "정답, 학습한 길이"),
        "long": Words("right, longest", "정답, 가장 긴 길이"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["short"] > 0.8),
    korean={
        "none": "없음",
        "index": "순번",
        "normalised_index": "정규화한 순번",
        "binary": "이진수",
        "one_hot": "원-핫",
        "learned": "학습한 벡터",
        "sinusoidal": "사인(번갈아)",
        "sinusoidal_concatenated": "사인(이어 붙임)",
        "rotary": "회전",
        "alibi": "ALiBi",
        "relative": "상대 위치",
    },
)
