"""GPT, DALL-E, ViT and DETR are made of the same layers: one small picture of each, by its
recipe."""

import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import numpy as np

from transduct.blocks.transformer import DecoderLayer, EncoderLayer
from transduct.config import load_recipe
from transduct.data.archives import read_members
from transduct.data.images import read_picture
from transduct.drawing.svg import Photograph, Picture, Shape, Text
from transduct.predictors.base import load, model_directory
from transduct.runs.train import train
from transduct.storage import WEIGHTS, read_tensors
from transduct_course.experiment import (
    Experiment,
    Measured,
    NotRun,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
)

RECIPES = Path(__file__).parents[2] / "recipes"
CAPTION, BEGINNING = "a large red circle above a small blue square", "ROMEO:"
SIDE = 64  # pixels of a picture that is kept
THRESHOLD = 0.2  # the least score of a box; after minutes of training none is sure of its label


# Of each its recipe, the data set that it needs, and for a full run the profile and what changes in
# it; shorter runs take the recipe's `quick` profile.
FAMILY: dict[str, tuple[str, str | None, str, tuple[str, ...]]] = {
    "GPT": ("tinyshakespeare_gpt", "tinyshakespeare", "quick", ("training.steps=1000",)),
    "DALL-E": (
        "scenes_dalle", None, "cpu",
        ("stages.0.training.steps=1000", "stages.1.training.steps=3000"),
    ),
    "ViT": ("cifar10_vit", "cifar10_jpg", "quick", ("training.steps=400",)),
    "DETR": (
        "scenes_detr", "cifar10_jpg", "cpu",
        tuple(f"stages.{i}.training.steps={n}" for i, n in enumerate((1500, 800, 200))),
    ),
}  # fmt: skip


OPTIONS: dict[str, dict[str, Any]] = {"GPT": {"length": 120}, "DETR": {"threshold": THRESHOLD}}


def measure(setting: Setting) -> Measured:
    """Train each recipe for as long as its quick profile does, or a little longer, and let it
    answer one input."""
    if not RECIPES.is_dir():
        raise NotRun("the recipes of the repository (run it in a checkout)")
    for family, (_, data, *_) in FAMILY.items():
        if data is None or setting.found(data):
            with TemporaryDirectory() as folder:
                yield trained(family, setting, Path(folder))


def trained(family: str, setting: Setting, folder: Path) -> Row:
    """One training, and the model's answer to one input."""
    recipe, data, profile, changes = FAMILY[family]
    overrides = [f"data.root={setting.data}/{data}"] if data else []
    profile = setting.pick(profile, "quick", "quick")
    overrides += setting.pick(changes, (), ())
    setting.report(f"family: {family}, recipes/{recipe}.yaml --profile {profile}")
    if setting.size == "miniature":
        few = ("training.steps=2", "training.warmup=1", "training.checkpoint_every=2")
        stages = ("stages.0.", "stages.1.") if family == "DALL-E" else ("",)
        overrides += [f"{stage}{each}" for stage in stages for each in few]
    start = time.process_time()
    configured = load_recipe(RECIPES / f"{recipe}.yaml", overrides, profile)
    made = train(configured, folder / "run", False, setting.report)
    seconds = time.process_time() - start
    answering: Any = load(made, "cpu")
    given = asked(family, setting)
    [output] = answering.predict([given], **OPTIONS.get(family, {}))
    pixels = None
    if family != "GPT":
        pixels = given if family == "ViT" else answering.picture(given, output)
    layers = [
        f"{name}."
        for name, part in answering.model.named_modules()
        if isinstance(part, EncoderLayer | DecoderLayer)
    ]
    # Of the file, for a loaded model's matrices are packed for the processor.
    sizes = {
        name: weight.numel()
        for name, weight in read_tensors(model_directory(made) / WEIGHTS).items()
    }
    total = sum(sizes.values())
    inside = sum(size for name, size in sizes.items() if name.startswith(tuple(layers)))
    return {
        "family": family,
        "recipe": f"{recipe}.yaml",
        "minutes": seconds / 60,
        "layers": len(layers),
        "parameters": total,
        "share": inside / total,
        "said": said(family, output),
        "pixels": None if pixels is None else shrunk(np.asarray(pixels)).tolist(),
    }


def said(family: str, output: Any) -> str:
    """The words of an answer, or, of a painted picture, what was asked for."""
    if family == "DETR":
        return ", ".join(f"{each.label} {each.score:.0%}" for each in output)
    return CAPTION if family == "DALL-E" else str(output)


def asked(family: str, setting: Setting) -> Any:
    """The beginning of a play, a caption, a photograph, or three photographs on a canvas."""
    if family in ("GPT", "DALL-E"):
        return BEGINNING if family == "GPT" else CAPTION
    assert setting.data is not None
    members = read_members(setting.data / "cifar10_jpg" / "test.tar.xz", (".jpg",))
    photographs = [read_picture(content(), name) for name, content in islice(members, 3)]
    if family == "ViT":
        return photographs[0]
    canvas = np.full((96, 96, 3), 110, np.uint8)
    for photograph, (y, x) in zip(photographs, ((4, 6), (10, 58), (58, 30)), strict=True):
        canvas[y : y + 32, x : x + 32] = photograph
    return canvas


def shrunk(pixels: np.ndarray) -> np.ndarray:
    """At most about 64 pixels on a side, every second, third, ... kept."""
    step = max(1, -(-max(pixels.shape[:2]) // (2 * SIDE)))
    return pixels[::step, ::step]


def draw(rows: Rows) -> Picture:
    """What each model answered, side by side."""
    shapes: list[Shape] = [Text(16, 28, "One family of models", 15, bold=True)]
    for number, row in enumerate(rows):
        x = 16 + 196 * number
        shapes.append(Text(x, 56, row["family"], 13, bold=True))
        shapes.append(Text(x, 74, row["recipe"], 10))
        if row["pixels"] is not None:
            shapes.append(Photograph(x, 84, 160, 160, np.array(row["pixels"], np.uint8)))
        top = 98 if row["pixels"] is None else 262
        for place, line in enumerate(wrap(row["said"], 30)[:8]):
            shapes.append(Text(x, top + 15 * place, line, 10))
    return Picture(16 + 196 * len(rows), 310, tuple(shapes))


def judge(rows: Rows) -> list[Verdict]:
    """It is shown if each model holds layers of the same two classes."""
    least = min(row["share"] for row in rows)
    return Verdict.shown(
        all(row["layers"] for row in rows),
        Words(
            f"{len(rows)} model{'s were' if len(rows) > 1 else ' was'} built from the same layers, "
            f"which hold {least:.0%} of the parameters or more",
            f"모델 {len(rows)}개를 같은 층으로 만들었고, 그 층이 매개변수의 {least:.0%} 이상을 "
            f"차지한다",
        ),
    )


EXPERIMENT = Experiment(
    "family",
    Words(
        "GPT, DALL-E, ViT and DETR are made of the same layers.",
        "GPT, DALL-E, ViT, DETR는 모두 같은 층으로 만든다.",
    ),
    Words(
        "Each recipe is trained for a minute or a few, and its model answers one input. Counted "
        "are its layers of the two kinds that a Transformer has, and their share of the "
        "parameters.",
        "레시피마다 몇 분만 학습해 입력 하나에 답하게 한다. Transformer의 두 가지 층이 몇 개인지, "
        "매개변수 가운데 얼마를 차지하는지 센다.",
    ),
    keys={"family": Words("model", "모델"), "recipe": Words("recipe", "레시피")},
    values={
        "minutes": Words("minutes of a core", "코어 하나로(분)"),
        "layers": Words("layers", "층 수"),
        "parameters": Words("parameters", "매개변수"),
        "share": Words("share of the layers", "층의 비중"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    by_seed=False,
)
