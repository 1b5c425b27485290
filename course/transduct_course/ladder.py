"""A Transformer built up part by part, from an average of the letters so far: the loss after each
part."""

from collections.abc import Iterator
from itertools import count, pairwise
from statistics import fmean

from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.transformer import FeedForward
from transduct.functional.positions import sinusoidal
from transduct.segments import Segments
from transduct_course import small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words
from transduct_course.far_words import read_letters, windows

RUNGS = ("average", "attention", "positions", "heads", "feed-forward", "residual and norm")
KOREAN = ("평균", "어텐션", "위치 인코딩", "멀티 헤드", "피드포워드", "잔차 연결과 정규화")
IN_KOREAN = dict(zip(RUNGS, KOREAN, strict=True))
WIDTH, LAYERS = 64, 2


class Rung(nn.Module):
    """A language model of two layers with the parts up to a rung of the ladder.

    Let N be tokens, D the width and V the letters.
    """

    def __init__(self, letters: int, rung: str) -> None:
        super().__init__()
        self.parts = RUNGS[: RUNGS.index(rung) + 1]
        heads = 4 if "heads" in self.parts else 1
        self.embedding, self.output = nn.Embedding(letters, WIDTH), nn.Linear(WIDTH, letters)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList()
        for _ in range(LAYERS):
            attention = MultiHeadAttention(WIDTH, heads)
            if rung == "average":  # equal scores, and so equal weights
                nn.init.zeros_(attention.query.weight).requires_grad_(False)
            self.layers.append(attention)
            if "feed-forward" in self.parts:
                self.layers.append(FeedForward(WIDTH, 4 * WIDTH, 0.0, "relu"))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in self.layers)

    def hidden(self, tokens: Tensor, segments: Segments) -> Tensor:
        """(N,) -> (N, D)."""
        x: Tensor = self.embedding(tokens)
        if "positions" in self.parts:
            x = x + sinusoidal(segments.positions, WIDTH)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            given = (segments, True) if isinstance(layer, MultiHeadAttention) else ()
            whole = "residual and norm" in self.parts
            x = x + layer(norm(x), *given) if whole else layer(x, *given)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return self.output(hidden)


def measure(setting: Setting) -> Measured:
    """Train the model of each rung to predict the next character."""
    ids, letters = read_letters(setting.data)
    context, steps = setting.pick(64, 64, 16), setting.pick(300, 300, 3)
    test = windows(ids, context, 64, "test")
    for rung, seed in setting.each(RUNGS):
        data = (windows(ids, context, 16, f"{seed} {n}") for n in count())
        model, _ = small.train(
            small.seeded(seed, Rung, letters, rung), data, steps, loss=small.next_loss, seed=seed
        )
        yield {
            "rung": rung,
            "seed": seed,
            "loss": small.mean_loss(small.next_loss, model, test),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        }


def judge(rows: Rows) -> Iterator[Verdict]:
    """A verdict on each part: it lowers the loss by 0.01 more than seeds differ, or raises it."""
    for before, rung in pairwise(RUNGS):
        old, new = ([row["loss"] for row in rows if row["rung"] == each] for each in (before, rung))
        lower, higher = max(new) < min(old) - 0.01, min(new) > max(old) + 0.01
        because = Words(
            f"the loss goes from {fmean(old):.2f} to {fmean(new):.2f}",
            f"손실 {fmean(old):.2f} → {fmean(new):.2f}",
        )
        part = Words(rung, IN_KOREAN[rung])
        yield Verdict.of(lower if lower or higher else None, because, part)


EXPERIMENT = Experiment(
    "ladder",
    Words(
        "Each part of the Transformer lowers the loss.",
        "Transformer의 각 부분은 저마다 손실을 낮춘다.",
    ),
    Words(
        "Small language models predict the next letter. The first averages the letters before; "
        "each next one has one part more. Measured is the loss on other stretches of the text.",
        "작은 언어 모델이 다음 글자를 맞힌다. 첫 모델은 앞의 글자를 평균하고, 모델마다 부분이 "
        "하나씩 늘어난다. 학습하지 않은 구간에서 손실을 측정한다.",
    ),
    keys={"rung": Words("up to", "여기까지")},
    values={
        "loss": Words("loss", "손실"),
        "parameters": Words("parameters", "매개변수"),
    },
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            [{**row, "model": "a Transformer, part by part"} for row in rows],
            "rung",
            "loss",
            "model",
            "Loss of the next letter after each part",
            y_label="loss",
            bars=True,
        )
    ),
    judge=judge,
    korean=IN_KOREAN,
)
