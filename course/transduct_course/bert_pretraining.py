"""Pre-training on plain text helps where labels are few, and less where there are many; in three
tasks and in translation, also where it does not."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from transduct.data.lines import read_lines
from transduct.data.sources import TextSource
from transduct.data.text import read_rows
from transduct.data.tokenizer import Tokenizer
from transduct.drawing.svg import Picture
from transduct.models import bert
from transduct.tasks.translation import as_source_side
from transduct_course import real, small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Rows,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
)

VOCABULARY, LONGEST = 3000, 48
ALONE, AFTER = "from scratch", "pre-trained"
MADE, CAPTIONS = "generated", "multi30k, English to German"
REAL = {"SST-2": "sst2", "NSMC": "nsmc_raw_sentiment", "tags": "wsj_treebank_sample"}
IN_KOREAN = {
    AFTER: "사전 학습",
    ALONE: "처음부터",
    MADE: "만든 글",
    "tags": "품사",
    CAPTIONS: "multi30k 영어-독일어",
}
Example = tuple[small.Ids, Any]  # with a label, or one for each word


class Labelled(NamedTuple):
    """A data set of labelled texts.

    Attributes:
        head: whether a text has a label, or each of its words.
        labels: how many different labels there are.
        counts: how many labelled texts a full run learns from.
    """

    train: list[Example]
    test: list[Example]
    counts: Sequence[int]
    head: Literal["sequence", "tokens"] = "sequence"
    labels: int = 2


def generated(setting: Setting) -> Labelled:
    """Rows of words from two topics of 40 words each; the label is the topic of most of them."""
    parts = []
    for part, size in (("train", setting.pick(2000, 1000, 20)), ("test", 300)):
        random, rows = Random(part), []
        for _ in range(size):
            label = random.randrange(2)
            topics = [label if random.random() < 0.65 else 1 - label for _ in range(12)]
            rows.append(([1 + 40 * topic + random.randrange(40) for topic in topics], label))
        parts.append(rows)
    train, test = parts
    return Labelled(train, test, (100, 500, 2000))


def rows_of(folder: Path, part: str, count: int | None = None) -> list[tuple[int, str]]:
    """The first labels and texts of a file in which they are the last two columns."""
    lines = islice(read_lines(folder / f"{part}.tsv.xz"), count)
    return [(int(label), text) for label, text in (line.split("\t")[-2:] for line in lines)]


def sst2(setting: Setting, folder: Path) -> Labelled:  # noqa: ARG001
    """English film reviews as ids of their commonest words."""
    train, test = numbered(
        [(text.lower().split()[:LONGEST], label) for label, text in rows_of(folder, part)]
        for part in ("train", "dev")
    )
    return Labelled(train, test, (100, 1000, 6920))


def nsmc(setting: Setting, folder: Path) -> Labelled:
    """Korean film reviews as ids of pieces, for Korean words have too many forms."""
    counts = {"train": setting.pick(20_000, 8000, 50), "dev": 1000}
    parts = [rows_of(folder, part, most) for part, most in counts.items()]
    tokenizer = Tokenizer.train((text for _, text in parts[0]), "bpe", VOCABULARY)
    train, test = (
        [
            (ids[:LONGEST], label)
            for ids, (label, _) in zip(tokenizer.encode([t for _, t in part]), part, strict=True)
            if ids
        ]
        for part in parts
    )
    return Labelled(train, test, (100, 2000))


def tags(setting: Setting, folder: Path) -> Labelled:  # noqa: ARG001
    """English newspaper text; each word's label is its part of speech."""
    sources = [TextSource(trees=f"{part}.mrg.xz", columns=["words", "tags"])
               for part in ("train", "dev")]  # fmt: skip
    parts = [
        [(words.lower().split()[:LONGEST], found.split()[:LONGEST])
         for words, found in read_rows(source, folder) if words]
        for source in sources
    ]  # fmt: skip
    kinds = {kind: i for i, kind in enumerate(sorted({k for _, own in parts[0] for k in own}))}
    train, test = numbered(
        [(words, [kinds.get(kind, -1) for kind in found]) for words, found in part]
        for part in parts
    )
    return Labelled(train, test, (100, 3199), "tokens", max(2, len(kinds)))


def numbered(given: Iterable[list[tuple[list[str], Any]]]) -> list[list[Example]]:
    """The parts of a data set with ids for the commonest words of the first; 0 for others."""
    parts = [*given]
    common = real.commonest((words for words, _ in parts[0]), VOCABULARY - 2)
    known = {word: 1 + i for i, word in enumerate(common)}
    return [[([known.get(word, 0) for word in words], label) for words, label in part]
            for part in parts]  # fmt: skip


READERS: dict[str, Callable[[Setting, Path], Labelled]] = {
    "SST-2": sst2, "NSMC": nsmc, "tags": tags,
}  # fmt: skip


def measure(setting: Setting) -> Measured:
    """Fine-tune on growing parts of the labels, after pre-training on all texts and without it; on
    each data set there is, and in translation."""
    if setting.data is None:
        yield from labelling(setting, MADE, generated(setting))
        return
    there = [name for name, folder in REAL.items() if setting.has(folder)]
    captions = setting.has("multi30k")
    if not there and not captions:
        setting.folder("sst2")  # says what is missing
    for name in there:
        yield from labelling(setting, name, READERS[name](setting, setting.folder(REAL[name])))
    if captions:
        yield from translating(setting)


def labelling(setting: Setting, name: str, data: Labelled) -> Measured:
    """Learn labels with and without pre-training."""
    few = setting.data is not None  # then there are more data sets than one
    read, steps = setting.pick((3000, 600), (150, 60) if few else (300, 120), (3, 3))
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: {name}, seed {seed}, pre-training")
        known = small.seeded(seed, built, "masked")
        texts = real.hidden([ids for ids, _ in data.train], VOCABULARY, seed, 24)
        small.train(known, texts, read, 3e-3, loss=real.hidden_loss, seed=seed)
        for count in setting.pick(data.counts, (100, 1000), (10,)):
            for kind in (AFTER, ALONE):
                setting.report(f"bert_pretraining: {name}, seed {seed}, {count} labels, {kind}")
                model = small.seeded(seed, built, data.head, data.labels)
                if kind == AFTER:
                    model.load_state_dict(known.state_dict(), strict=False)
                rows = small.choices(data.train[:count], 24, f"reviews {seed}", labelled)
                small.train(model, rows, steps, 2e-3, loss=small.label_loss, seed=seed)
                about = {"data": name, "labels": count, "model": kind, "seed": seed}
                yield {**about, "accuracy": small.label_accuracy(model, labelled(data.test))}


def translating(setting: Setting) -> Measured:
    """Learn to translate few captions, with an encoder that has read all English ones and with a
    new one; neither with R-Drop."""
    count = setting.pick(3000, 1500, 30)
    folder = setting.folder("multi30k")
    text = real.captions(folder, count, setting.pick(300, 50, 4))
    plain = [line for line in read_lines(folder / "train.en.gz") if 0 < len(line.split()) <= 16]
    read_texts = text.tokenizer.encode(plain[: setting.pick(None, 8000, 50)])
    texts = [ids[:LONGEST] for ids in read_texts]
    read, steps = setting.pick((800, 500), (120, 80), (2, 2))
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: translation, seed {seed}, pre-training")
        size = text.tokenizer.size
        known = small.seeded(seed, built, "masked", vocabulary_size=size, activation="relu")
        hidden = real.hidden(texts, size, seed, 32)
        small.train(known, hidden, read, 3e-3, loss=real.hidden_loss, seed=seed)
        for kind in (AFTER, ALONE):
            setting.report(f"bert_pretraining: translation, seed {seed}, {kind}")
            shape = {"dropout": 0.1, "tie": "decoder", "positions": "rotary"}
            model = small.seeded(seed, small.transformer_of, text.vocabulary, **shape)
            if kind == AFTER:
                weights = {name: each.detach() for name, each in known.named_parameters()}
                as_source_side(weights)
                model.load_state_dict(weights, strict=False)
            pairs = small.choices(text.train, 32, f"translation {seed}")
            small.train(model, pairs, steps, 2e-3, seed=seed)
            about = {"data": CAPTIONS, "labels": count, "model": kind, "seed": seed}
            yield {**about, **real.scored(model, text)}


def built(head: str, labels: int = 2, **changes: Any) -> bert.Bert:
    """A small BERT; with a label for each sequence it takes the mean of all tokens."""
    shape = {**small.WIDTH, "layers": 2, "dropout": 0.1, "positions": "rotary", "pool": "mean",
             "vocabulary_size": VOCABULARY, "max_length": LONGEST + 2}  # fmt: skip
    return bert.Bert(bert.Config(**{**shape, "head": head, "labels": labels, **changes}))


def labelled(rows: Sequence[Example]) -> small.Labelled:
    """The batch of these texts, which have a label each, or one for each word."""
    return small.labelled(
        [(ids, label if isinstance(label, list) else [label]) for ids, label in rows]
    )


def draw(rows: Rows) -> Picture:
    """Accuracy by the number of labels, for each data set, and chrF of translation."""
    return slide(
        *(
            Chart(group, "labels", "chrf", "model", data, "labels", "chrF", bars=True)
            if data == CAPTIONS
            else Chart(group, "labels", "accuracy", "model", data, "labels", "%", 100, bars=True)
            for (data,), group in grouped(rows, "data").items()
        )
    )


def judge(rows: Rows) -> list[Verdict]:
    """For each data set, with the fewest labels, the differences over seeds: it holds if their mean
    is above 0 by twice its standard error, and does not if it is below."""
    found = []
    for (data,), group in grouped(rows, "data").items():
        key, form = ("chrf", ".1f") if data == CAPTIONS else ("accuracy", ".1%")
        counts, gains = sorted({row["labels"] for row in group}), []
        for count in counts:
            pairs = grouped((r for r in group if r["labels"] == count), "seed").values()
            gains.append([mean(each, key, model=AFTER) - mean(each, key, model=ALONE)
                          for each in pairs])  # fmt: skip
        few, won = gains[0], sum(gain > 0 for gain in gains[0])
        error = stdev(few) / len(few) ** 0.5 if len(few) > 1 else float("inf")
        listed = [
            [f"{mean(group, key, model=kind, labels=count):{form}}" for kind in (AFTER, ALONE)]
            for count in counts
        ]
        name = "chrF" if data == CAPTIONS else "accuracy"
        english = [f"{after} and {alone} from {n:,}"
                   for n, (after, alone) in zip(counts, listed, strict=True)]  # fmt: skip
        korean = [f"{n:,}개에서 {after}, {alone}"
                  for n, (after, alone) in zip(counts, listed, strict=True)]  # fmt: skip
        because = Words(
            f"{name} after pre-training and without it: {', '.join(english)}; from {counts[0]:,} "
            f"it is better in {won} of {len(few)} pairs",
            f"{'chrF는' if data == CAPTIONS else '정확도는'} 사전 학습을 했을 때와 하지 않았을 때 "
            f"차례로 {', '.join(korean)}다. {counts[0]:,}개에서 {len(few)}쌍 가운데 {won}쌍이 더 "
            "낫다",
        )
        helps = fmean(few) > 0 if abs(fmean(few)) > 2 * error else None
        part = Words(f"it helps: {data}", f"{IN_KOREAN.get(data, data)}에 도움이 된다")
        found.append(Verdict.of(helps, because, part))
    return found


EXPERIMENT = Experiment(
    "bert_pretraining",
    Words(
        "Pre-training on text without labels helps the task after it.",
        "레이블이 없는 글로 먼저 학습하면(사전 학습) 그다음 과제를 더 잘한다.",
    ),
    Words(
        "A small BERT guesses hidden words, then learns from few labels whether a film review is "
        "kind, or the parts of speech, or, as the encoder of a translator, from few pairs; another "
        "learns from these alone. They are compared in pairs, from the same labels.",
        "작은 BERT가 가려진 낱말을 맞히고 나서 적은 레이블로 영화평의 호불호나 품사를 배우고, "
        "번역기의 인코더가 되어 적은 문장쌍으로 번역을 배운다. 다른 하나는 사전 학습 없이 배운다. "
        "같은 레이블로 배운 둘씩 처음 보는 글에서 비교한다.",
    ),
    keys={
        "data": Words("data", "데이터"),
        "labels": Words("labels", "레이블 수"),
        "model": Words("model", "모델"),
    },
    values={
        "accuracy": Words("accuracy", "정확도"),
        "chrf": Words("chrF", "chrF"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["labels"] == 100,
    korean=IN_KOREAN,
)
