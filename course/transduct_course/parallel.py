"""Recurrence is one step after another: time and memory of attention and of a GRU, by length and
batch."""

import os
import time
from collections.abc import Callable
from itertools import product
from statistics import median

import torch
from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.recurrent import Recurrent
from transduct.drawing.svg import Picture
from transduct.kernels.threads import Cores
from transduct.segments import Segments
from transduct_course.charts import Chart, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "attention": lambda width: MultiHeadAttention(width, width // 64),
    "GRU": lambda width: Recurrent("gru", width, width, 1),
}


def measure(setting: Setting) -> Measured:
    """Time one layer forward and backward, on the CPU and on a GPU where there is one."""
    width = setting.pick(256, 128, 64)
    lengths = setting.pick((32, 128, 512, 2048), (32, 128, 512), (8, 16))
    batches = setting.pick((1, 8, 32), (1, 16), (1, 4))
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with Cores():
        torch.set_num_threads(os.cpu_count() or 1)
        for device, length, batch, name in product(devices, lengths, batches, LAYERS):
            setting.report(f"parallel: {device}, {batch} x {length}, {name}")
            layer = LAYERS[name](width).to(device)
            yield {
                "device": device,
                "layer": name,
                "length": length,
                "batch": batch,
                **timed(layer, width, length, batch, setting.pick(5, 3, 1)),
            }


def timed(layer: nn.Module, width: int, length: int, batch: int, rounds: int) -> dict[str, float]:
    """The median time of each direction, and what is kept for the gradient."""
    device = next(layer.parameters()).device
    segments = Segments.of([length] * batch, device)
    times: list[tuple[float, float]] = []
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    for _ in range(rounds + 1):  # the first warms up
        x = torch.randn(length * batch, width, device=device, requires_grad=True)
        kept.clear()
        moments = [now(device)]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            y = layer(x, segments)
        moments.append(now(device))
        y.sum().backward()
        moments.append(now(device))
        times.append((moments[1] - moments[0], moments[2] - moments[1]))
    weights = {each.untyped_storage().data_ptr() for each in layer.parameters()}
    forward, backward = (1000 * median(part) for part in zip(*times[1:], strict=True))
    return {
        "forward_ms": forward,
        "backward_ms": backward,
        "kept_mib": sum(size for place, size in kept.items() if place not in weights) / 2**20,
        "tokens_per_ms": length * batch / (forward + backward),
    }


def now(device: torch.device) -> float:
    """The time once the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def draw(rows: Rows) -> Picture:
    """By length: the time of a thousand tokens, in the smallest and the largest batch, and what is
    kept for the gradient."""
    device, batches = rows[-1]["device"], sorted({row["batch"] for row in rows})
    found = [{**row, "ms": 1000 / row["tokens_per_ms"]} for row in rows if row["device"] == device]
    charts = {
        batch: Chart([row for row in found if row["batch"] == batch], "length", "ms", "layer",
                     f"{device}, batch {batch}: ms for 1,000 tokens", "tokens", log=True)
        for batch in (batches[0], batches[-1])
    }  # fmt: skip
    kept = [row for row in found if row["batch"] == batches[-1]]
    title = f"memory kept for the gradient, MiB, batch {batches[-1]}"
    return slide(
        *charts.values(), Chart(kept, "length", "kept_mib", "layer", title, "tokens", log=True)
    )


def judge(rows: Rows) -> list[Verdict]:
    """Whether at every length a GRU alone is slower, keeps more memory, and gains nothing from a
    batch."""
    device = rows[-1]["device"]
    rows = [row for row in rows if row["device"] == device]
    lengths = sorted({row["length"] for row in rows})
    many, longest = max(row["batch"] for row in rows), lengths[-1]

    def at(value: str, layer: str, length: int, batch: int = 1) -> float:
        return mean(rows, value, layer=layer, length=length, batch=batch)

    speed = [at("tokens_per_ms", "attention", n) / at("tokens_per_ms", "GRU", n) for n in lengths]
    cross = next((n for n, each in zip(lengths, speed, strict=True) if each < 1), 0)
    memory = at("kept_mib", "GRU", longest) / at("kept_mib", "attention", longest)
    gain = at("tokens_per_ms", "GRU", lengths[0], many) / at("tokens_per_ms", "GRU", lengths[0])
    where = Words(
        f"where the lines cross before {cross}" if cross else "and the lines do not cross",
        f"{cross}토큰에 이르기 전에 순위가 바뀐다" if cross else "순위는 바뀌지 않는다",
    )
    return [
        Verdict.of(
            min(speed) > 1,
            Words(
                f"on a {device}, one sequence at a time, attention is {speed[0]:.1f} times as fast "
                f"at {lengths[0]} tokens and {speed[-1]:.1f} times at {longest:,}, {where.english}",
                f"{device}에서 한 문장씩 처리하면 어텐션의 속도는 GRU에 견주어 "
                f"{lengths[0]}토큰에서 {speed[0]:.1f}배, {longest:,}토큰에서 {speed[-1]:.1f}배이며 "
                f"{where.korean}",
            ),
            Words("sequential and slow", "순서대로만 계산해 느리다"),
        ),
        Verdict.of(
            memory > 1,
            Words(
                f"a GRU keeps {memory:.2f} times the memory of attention at {longest:,}",
                f"{longest:,}토큰에서 GRU가 쓰는 메모리는 어텐션의 {memory:.2f}배다",
            ),
            Words("much memory", "메모리를 많이 쓴다"),
        ),
        Verdict.of(
            gain < 1.5,
            Words(
                f"{many} sequences at once make a GRU {gain:.1f} times as fast",
                f"{many}문장을 한꺼번에 넣으면 GRU는 {gain:.1f}배 빨라진다",
            ),
            Words("not many at once", "한꺼번에 처리하지 못한다"),
        ),
    ]


EXPERIMENT = Experiment(
    "parallel",
    Words(
        "Recurrence is sequential and slow, takes much memory, and cannot do many sequences at "
        "once.",
        "순환 신경망은 순서대로만 계산해 느리고, 메모리를 많이 쓰며, 여러 문장을 한꺼번에 "
        "처리하지 못한다.",
    ),
    Words(
        "One layer of attention and one GRU of the same width read sequences of growing length, "
        "alone "
        "and in batches. Measured are the time forward and backward and the memory kept between.",
        "폭이 같은 어텐션 층과 GRU 층이 점점 긴 문장을 하나씩, 또 여러 개씩 읽는다. 순전파와 "
        "역전파의 시간, 그 사이에 "
        "들고 있어야 하는 메모리를 측정한다.",
    ),
    keys={
        "device": Words("device", "장치"),
        "length": Words("length", "길이"),
        "batch": Words("batch", "배치"),
        "layer": Words("layer", "층"),
    },
    values={
        "forward_ms": Words("forward, ms", "순전파(ms)"),
        "backward_ms": Words("backward, ms", "역전파(ms)"),
        "kept_mib": Words("kept, MiB", "메모리(MiB)"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["length"] == 2048 and row["device"] == "cpu",
    by_seed=False,
    korean={"attention": "어텐션"},
)
