"""Four heads on four bands of 80 filterbanks, beside heads that all see all bands, also with as
many parameters: on made-up sounds, and on recordings of digits."""

from collections.abc import Callable, Iterator
from itertools import chain, count, takewhile
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from transduct.data.audio import Features, filterbanks
from transduct.data.files import Refused
from transduct.data.recordings import (
    STACK,
    SoundSource,
    Tally,
    fixed_utterances,
    read_recordings,
)
from transduct.data.tokenizer import Tokenizer
from transduct.drawing.plots import page
from transduct.drawing.svg import Picture
from transduct.errors import MissingExtra
from transduct.evaluation.text import token_error_rate
from transduct.functional.losses import ctc_loss
from transduct.models import speech
from transduct.predictors.speech_recognition import BLANK, Batch, make_batch
from transduct.tasks import translation
from transduct.training.distributed import Terms
from transduct_course import small
from transduct_course.charts import slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
)
from transduct_course.positions import heat

BANDS, DIGITS, FRAMES = 80, 10, 16  # frames of a digit
# The two bands in which a digit sounds, at its start and at its end: no single quarter of the bands
# tells all digits apart.
TONES = [((3 + 7 * d) % BANDS, (45 + 11 * d) % BANDS) for d in range(DIGITS)]

CTC = 0.5  # the weight of its loss
MADE, RECORDED = "made-up sounds", "recorded digits"
IN_KOREAN = {MADE: "합성한 소리", RECORDED: "녹음한 숫자"}
ALL, BY_BANDS, AS_MANY = "all", "bands", "all, as many parameters"

Utterance = tuple[np.ndarray, small.Ids]  # its filterbanks, and the digits


def spoken(size: int, seed: str) -> list[Utterance]:
    """Made-up sounds: each digit is two tones that glide, in noise, of two to five digits a row."""
    random, torch_random = Random(seed), torch.Generator().manual_seed(Random(seed).getrandbits(40))
    rows = [[random.randrange(DIGITS) for _ in range(random.randint(2, 5))] for _ in range(size)]
    parts = []
    for digit in chain(*rows):
        sound = torch.zeros(FRAMES, BANDS)
        for tone, way in zip(TONES[digit], (1, -1), strict=True):
            centre = tone + random.uniform(-2, 2) + way * torch.arange(FRAMES)[:, None] / 4
            sound += 2 * torch.exp(-((torch.arange(BANDS) - centre) ** 2) / 4)
        parts.append(sound)
    features = torch.cat(parts)
    features = features + 0.7 * torch.randn(features.shape, generator=torch_random)
    sounds = features.split([FRAMES * len(row) for row in rows])
    return [
        (sound.numpy(), [small.FIRST + digit for digit in row])
        for sound, row in zip(sounds, rows, strict=True)
    ]


def measure(setting: Setting) -> Measured:
    """Train both kinds with the same budget, on made-up sounds and on recordings where there are
    any."""
    test = spoken(setting.pick(200, 100, 4), "test")
    yield from compared(setting, MADE, spoken, setting.pick(600, 150, 3), test)
    if folder := setting.found("fsdd"):
        try:
            train = recorded(folder, "train", [1, 4], setting.pick(2000, 400, 8))
            strings = recorded(folder, "test", [2, 4], setting.pick(200, 60, 4))
        except MissingExtra as lack:
            setting.report(f"speech_heads: no recordings: {lack}")
            return
        yield from compared(
            setting,
            RECORDED,
            lambda size, seed: Random(seed).choices(train, k=size),
            setting.pick(1500, 150, 2),
            strings,
        )


def compared(
    setting: Setting,
    data: str,
    draw: Callable[[int, str], list[Utterance]],
    steps: int,
    test: list[Utterance],
) -> Measured:
    """All kinds of heads on the same data."""
    for _, heads, seed in setting.each((data,), (ALL, BY_BANDS, AS_MANY)):
        batches = (make_batch(*zip(*draw(8, f"{seed} {n}"), strict=True)) for n in count())
        model, _ = small.train(
            small.seeded(seed, built, heads), batches, steps, loss=spoken_loss, seed=seed
        )
        yield {"data": data, "heads": heads, "seed": seed, **tested(model, test)}


def recorded(folder: Path, part: str, join: list[int], count: int) -> list[Utterance]:
    """Strings of recordings of one speaker and their filterbanks, in whole tokens of four frames.

    Raises MissingExtra without the library that reads sounds.
    """
    pattern = r"^(?P<text>\d)_(?P<speaker>\w+)_\d+\.wav$"
    source = SoundSource(f"{part}.tar.gz", pattern=pattern, join=join, strings=count)
    features, tally = Features(rate=8000), Tally(Refused("stop"))
    known = [*read_recordings(source, folder, features, 10.0, tally)]
    return [
        (filterbanks(each.samples, features), [small.FIRST + int(d) for d in each.text.split()])
        for each in fixed_utterances(known, source, features.rate)
    ]


def built(heads: str) -> speech.Speech:
    """A recogniser of two layers and four heads."""
    shape = {**small.WIDTH, "encoder_layers": 2, "decoder_layers": 1, "max_length": 200}
    if heads == AS_MANY:
        shape |= {"d_model": 56, "d_ff": 64}
    shape |= {"heads": BY_BANDS if heads == BY_BANDS else ALL, "bands": BANDS}
    return speech.Speech(speech.Config(small.FIRST + DIGITS, **shape))


def spoken_loss(model: small.Model, batch: Batch) -> Terms:
    """The cross-entropy of the digits and, as in recipes, CTC of the encoder: without it so few
    steps do not find where a digit is."""
    memory, frames = model.encode(batch.features, batch.frames)
    logits = model.logits(model.decode(batch.inputs, batch.target_segments, memory, frames))
    aligned = ctc_loss(model.ctc(memory), frames, batch.text, batch.text_segments, BLANK)
    tokens = small.summed(logits, batch.outputs, "tokens")
    return {**tokens, "ctc": (aligned.sum(), batch.counts["ctc"], CTC)}


@torch.inference_mode()
def tested(model: small.Model, test: list[Utterance]) -> Row:
    """Errors in the digits that the model writes by itself (edits for each digit), and what the
    four heads of the first layer look at over the time of one row."""
    weights: list[Tensor] = []
    sounds, targets = zip(*test, strict=True)
    batch = make_batch(sounds, targets)
    memory, frames = model.encode(batch.features, batch.frames, weights)

    def predict(text: translation.Batch) -> Tensor:
        hidden = model.decode(text.inputs, text.target_segments, memory, frames)
        return model.logits(hidden).argmax(-1)

    heard, said = (
        [" ".join(map(str, takewhile(Tokenizer.END.__ne__, row))) for row in rows]
        for rows in (small.written(predict, [[0] for _ in test], 8), targets)  # more than a row has
    )
    steps = min(24, int(batch.frames.lengths[0]) // STACK)
    return {
        "wrong": token_error_rate(heard, [[text] for text in said]).score / 100,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "maps": weights[0][0, :, :steps, :steps].round(decimals=3).tolist(),
        "sound": batch.features[: STACK * steps : 2, ::4].T.flip(0).round(decimals=2).tolist(),
    }


def draw(rows: Rows) -> Picture:
    """The last sound over time, and the four heads' attention over the same time, of each kind."""
    parts = []
    last = [row for row in rows if row["data"] == rows[-1]["data"] and row["heads"] != AS_MANY]
    for (heads,), (row, *_) in grouped(last, "heads").items():
        sound = torch.tensor(row["sound"])
        parts.append(heat(f"{row['data']}, {heads}", sound / sound.abs().max(), 240, 160))
        for number, each in enumerate(row["maps"]):
            own = f", band {20 * number + 1} to {20 * number + 20}" if heads == BY_BANDS else ""
            weights = torch.tensor(each)
            parts.append(heat(f"head {number + 1}{own}", weights / weights.max(), 160, 160))
    title = "Sound over time, low bands below, and which moment looks at which"
    return slide(page(parts, 5, title))


def judge(rows: Rows) -> Iterator[Verdict]:
    """For each kind of sound, whether heads on bands of their own err no more than heads that see
    all; not decided where the seeds of one of these two differ by more, or by less than two points
    with one seed."""
    for (data,), group in grouped(rows, "data").items():
        spans = [
            max(row["wrong"] for row in each) - min(row["wrong"] for row in each)
            for (heads,), each in grouped(group, "heads").items()
            if heads != AS_MANY
        ]
        whole, parted, as_many = (
            mean(group, "wrong", heads=heads) for heads in (ALL, BY_BANDS, AS_MANY)
        )
        because = Words(
            f"wrong digits: {whole:.1%} if every head sees all bands, {parted:.1%} if each has its "
            f"own quarter, {as_many:.1%} if every head sees all and there are as many parameters",
            f"틀린 숫자는 모든 헤드가 전체 대역을 볼 때 {whole:.1%}, 헤드마다 4분의 1씩 볼 때 "
            f"{parted:.1%}, 전체를 보되 매개변수 수를 맞추면 {as_many:.1%}다",
        )
        undecided = min(whole, parted) > 0.5 or abs(whole - parted) <= max(0.02, *spans)
        part = Words(f"{data}: as good", f"{IN_KOREAN[data]}: 그만큼 잘한다")
        yield Verdict.of(None if undecided else parted < whole, because, part)


EXPERIMENT = Experiment(
    "speech_heads",
    Words(
        "For speech, four heads may each take a quarter of 80 filterbanks.",
        "음성에서는 헤드 네 개가 필터뱅크 80개를 4분의 1씩 나누어 볼 수 있다.",
    ),
    Words(
        "Small recognisers of spoken digits, made up of two gliding tones in noise and, where data "
        "is given, recorded, differ only in what the heads of the first layer see: all bands or a "
        "quarter each. Measured are errors in what they write by themselves, with the same budget.",
        "숫자를 알아듣는 작은 모델 둘은 첫 층의 헤드가 전체 대역을 보는지 4분의 1씩 보는지만 "
        "다르다. 합성한 소리(잡음 속에서 움직이는 두 음)와, `--data`를 주면 녹음한 숫자로, 같은 "
        "예산으로 학습해, 스스로 받아쓴 숫자의 오류를 측정한다.",
    ),
    keys={"data": Words("data", "데이터"), "heads": Words("heads see", "헤드가 보는 것")},
    values={
        "wrong": Words("digits wrong", "틀린 숫자"),
        "parameters": Words("parameters", "매개변수"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["wrong"] < 0.5),
    korean={
        **IN_KOREAN,
        ALL: "전체 대역",
        BY_BANDS: "4분의 1씩",
        AS_MANY: "전체, 매개변수 수는 같게",
    },
)
