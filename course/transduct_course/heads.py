"""Several heads look at different things; what that gains in a task of four looks and in
translation, and that it makes nothing faster."""

import time
from itertools import combinations, pairwise
from random import Random
from statistics import fmean, median

import torch
from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.drawing.plots import grid
from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.charts import slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

SYMBOLS, LENGTH, WIDTH = 8, 12, 32
LOOKS = (1, 3, 6, 10)  # places on, around the end to the start
KINDS = ("1", "2", "4", "8", "4 of full width")
# Of Table 3 in docs/paper_tables.md: one head, and the least of 2, 4 and 8, English to German.
BLEU = 12.74, 16.70


def four_looks(random: Random) -> small.Model:
    """Symbols; each is labelled with the four that stand so many places on."""
    row = [random.randrange(SYMBOLS) for _ in range(LENGTH)]
    labels = [[row[(place + look) % LENGTH] for look in LOOKS] for place in range(LENGTH)]
    return row, labels


class OneLayer(nn.Module):
    """Symbols and places, one layer of attention, and the logits of all looks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        heads = int(kind.split()[0])
        self.attention = MultiHeadAttention(WIDTH, heads, WIDTH if kind == KINDS[-1] else None)
        self.output = nn.Linear(WIDTH, len(LOOKS) * SYMBOLS)

    def forward(self, batch: small.Labelled, weights: list[Tensor] | None = None) -> Tensor:
        """(N, looks, symbols)."""
        x = self.symbols(batch.tokens) + self.places(batch.segments.positions)
        x = x + self.attention(x, batch.segments, weights=weights)
        return self.output(x).view(-1, len(LOOKS), SYMBOLS)


@torch.inference_mode()
def right(model: small.Model, batch: small.Labelled) -> list[float]:
    """The share of right symbols of each look."""
    found = model(batch).argmax(-1) == batch.labels
    return found.float().mean(0).tolist()


@torch.inference_mode()
def maps_of(model: small.Model, batch: small.Labelled) -> Tensor:
    """The attention weights (B, H, T, T)."""
    weights: list[Tensor] = []
    model(batch, weights)
    return weights[0]


def measure(setting: Setting) -> Measured:
    """Train with one to eight heads that divide a width of 32, and with four that have it each."""
    test = small.labelled(small.pairs(four_looks, setting.pick(300, 200, 8), "test"))
    for kind, seed in setting.each(setting.pick(KINDS, KINDS[:3], KINDS[::2])):
        model = small.seeded(seed, OneLayer, kind)
        before, moments = distance_between_heads(model, test), [time.process_time()]
        small.train(
            model, small.batches(four_looks, 64, seed, make=small.labelled),
            setting.pick(400, 400, 3), 3e-3, seed=seed,
            loss=lambda model, batch: small.of_labels(model(batch), batch),
            watch=lambda *_: moments.append(time.process_time()),  # noqa: B023
        )  # fmt: skip
        whole, left_out = right(model, test), without_each(model, test)
        yield {
            "heads": kind,
            "seed": seed,
            "accuracy": sum(whole) / len(LOOKS),
            "without": sum(map(sum, left_out)) / (len(LOOKS) * len(left_out)),
            "apart_before": before,
            "apart": distance_between_heads(model, test),
            "step_ms": 1000 * median(after - start for start, after in pairwise(moments)),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "maps": maps_of(model, test).mean(0).round(decimals=3).tolist(),
            "left_out": left_out,
        }


@torch.no_grad()
def without_each(model: small.Model, batch: small.Labelled) -> list[list[float]]:
    """For each head, the share of right symbols of each look while it is left out."""
    attention, found = model.attention, []
    kept = attention.output.weight.detach().clone()
    for head in range(attention.num_heads):
        attention.output.weight[:, head * attention.d_v : (head + 1) * attention.d_v] = 0.0
        found.append(right(model, batch))
        attention.output.weight.copy_(kept)
    return found


def distance_between_heads(model: small.Model, batch: small.Labelled) -> float | None:
    """How differently the heads look: half the sum of the differences of their weights, 0 for the
    same map and 1 for maps that share nothing; none for one head."""
    maps = maps_of(model, batch)
    parts = [
        float(0.5 * (maps[:, a] - maps[:, b]).abs().sum(-1).mean())
        for a, b in combinations(range(maps.shape[1]), 2)
    ]
    return sum(parts) / len(parts) if parts else None


def draw(rows: Rows) -> Picture:
    """Where four heads look, on average over rows of symbols, and what each look loses without each
    of them."""
    row = next((row for row in rows if row["heads"] == "4"), rows[-1])
    places = [str(place + 1) for place in range(LENGTH)]
    maps = [(f"head {n + 1}", each, places, places) for n, each in enumerate(row["maps"])]
    heads = [f"left out {n + 1}" for n in range(len(row["maps"]))]
    looks = [f"{look} places on" for look in LOOKS]
    lost = ("symbols right", row["left_out"], heads, looks)
    return slide(grid([*maps, lost], per_row=3, title="From each place (down) to each (across)"))


def judge(rows: Rows) -> list[Verdict]:
    """Each part by its own numbers."""
    four = [row for row in rows if row["heads"] == "4"]
    apart, before, without = (mean(four, key) for key in ("apart", "apart_before", "without"))
    accuracy = {kind: [r["accuracy"] for r in rows if r["heads"] == kind] for kind in ("1", "4")}
    one, several = map(fmean, accuracy.values())
    faster = mean(rows, "step_ms", heads="1") / mean(four, "step_ms")
    return [
        Verdict.of(
            apart > before + 0.1 and without < several - 0.1,
            Words(
                f"the maps of four trained heads are {apart:.0%} apart, {before:.0%} before "
                f"training; {several:.0%} of the symbols are right, and {without:.0%} with one "
                "head left out",
                f"학습된 헤드 네 개의 어텐션은 서로 {apart:.0%} 다르다(학습 전 {before:.0%}). "
                f"정확도는 {several:.0%}이고, 헤드 하나를 빼면 {without:.0%}다",
            ),
            Words("heads look at different things", "헤드마다 다른 것을 본다"),
        ),
        Verdict.of(
            min(accuracy["4"]) > max(accuracy["1"]) and BLEU[1] > BLEU[0],
            Words(
                f"four looks at once: {one:.0%} with one head, {several:.0%} with four; "
                f"translation (Table 3): {BLEU[0]:.1f} BLEU with one head, at least {BLEU[1]:.1f} "
                "with two, four or eight",
                f"한 번에 네 곳을 보는 과제의 정확도는 헤드 하나로 {one:.0%}, 네 개로 "
                f"{several:.0%}다. 번역(표 3)의 BLEU는 하나로 {BLEU[0]:.1f}, 둘, 넷, 여덟 개로 "
                f"{BLEU[1]:.1f} 이상이다",
            ),
            Words("several are more accurate than one", "하나보다 여럿이 정확하다"),
        ),
        Verdict.of(
            faster > 3,
            Words(
                f"a step with four heads is {faster:.2f} times as fast as with one: the products "
                "are as large, only divided",
                f"헤드가 네 개이면 학습 한 단계의 속도는 하나일 때의 {faster:.2f}배다. 곱셈의 양은 "
                "같고 나누어 할 뿐이다",
            ),
            Words("four are four times faster", "네 개면 네 배 빠르다"),
        ),
    ]


EXPERIMENT = Experiment(
    "heads",
    Words(
        "Heads look at different things, several are more accurate than one, and four are four "
        "times faster.",
        "헤드마다 다른 것을 보고, 하나보다 여럿이 정확하며, 네 개면 네 배 빠르다.",
    ),
    Words(
        "One layer of attention, with 1 to 8 heads that divide its width or have it each, names "
        "the symbols 1, 3, 6 and 10 places on. Measured are accuracy, also with each trained head "
        "left out, how far the maps lie apart before and after training, and the time of a step.",
        "헤드가 1개에서 8개인 어텐션 한 층이(폭을 나누어 쓰거나 저마다 전체 폭을 쓰며) 1, 3, 6, "
        "10칸 뒤의 기호를 맞힌다. 정확도, 학습된 헤드를 하나씩 뺐을 때의 정확도, 학습 전후 헤드 "
        "사이의 거리, 학습 한 단계의 시간을 측정한다.",
    ),
    keys={"heads": Words("heads", "헤드")},
    values={
        "accuracy": Words("accuracy", "정확도"),
        "without": Words("one head left out", "헤드 하나를 뺄 때"),
        "apart_before": Words("maps apart, before", "헤드 사이 거리, 학습 전"),
        "apart": Words("after", "학습 후"),
        "step_ms": Words("ms a step", "단계당 ms"),
        "parameters": Words("parameters", "매개변수"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["accuracy"] > 0.5),
    korean={KINDS[-1]: "4개, 저마다 전체 폭"},
)
