"""Whether pre-training on plain text helps where labels are few: in three tasks and in
translation."""

from collections.abc import Iterator
from itertools import islice, product
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
MADE, CAPTIONS, KOREAN, TAGS = "generated", "multi30k, English to German", "NSMC", "tags"
# Of each data set the folder, the kind and the ending of its files, and the columns of texts and
# labels.
REAL: dict[str, tuple[str, str, str, list[Any]]] = {
    "SST-2": ("sst2", "pairs", "tsv.xz", [1, 0]),
    KOREAN: ("nsmc_raw_sentiment", "pairs", "tsv.xz", [2, 1]),
    TAGS: ("wsj_treebank_sample", "trees", "mrg.xz", ["words", "tags"]),
}
IN_KOREAN = {
    AFTER: "사전 학습",
    ALONE: "처음부터",
    MADE: "만든 글",
    TAGS: "품사",
    CAPTIONS: "multi30k 영어-독일어",
}


class Labelled(NamedTuple):
    """A data set of labelled texts.

    Attributes:
        head: whether a text has a label, or each of its words.
        labels: how many different labels there are.
    """

    train: list[small.Pair]
    test: list[small.Pair]
    head: Literal["sequence", "tokens"] = "sequence"
    labels: int = 2


def generated(setting: Setting) -> Labelled:
    """Rows of words from two topics of 40 words each; the label is the topic of most of them."""

    def part(name: str, size: int) -> list[small.Pair]:
        random, rows = Random(name), []
        for _ in range(size):
            label = random.randrange(2)
            topics = [label if random.random() < 0.65 else 1 - label for _ in range(12)]
            rows.append(([1 + 40 * topic + random.randrange(40) for topic in topics], [label]))
        return rows

    return Labelled(part("train", setting.pick(2000, 1000, 20)), part("test", 300))


def read(setting: Setting, name: str) -> Labelled:
    """A data set as ids of its commonest words, or pieces of words in Korean, whose words have too
    many forms; and numbers of its labels. Unknown words are 0, unknown labels -1."""
    folder, kind, ending, columns = REAL[name]
    parts = []
    for part, most in (("train", setting.pick(20_000, 8000, 50)), ("dev", 1000)):
        files: dict[str, Any] = {kind: f"{part}.{ending}", "columns": columns}
        rows = islice(read_rows(TextSource(**files), setting.folder(folder)), most)
        parts.append([(text.lower(), labels.split()) for text, labels in rows if text.strip()])
    texts = (text for text, _ in parts[0])
    tokenizer = Tokenizer.train(texts, "bpe", VOCABULARY) if name == KOREAN else None

    def words(text: str) -> list[str]:
        found = tokenizer.pieces(tokenizer.encode([text])[0]) if tokenizer else text.split()
        return found[:LONGEST]

    split = [[(words(text), labels[:LONGEST]) for text, labels in rows] for rows in parts]
    common = real.commonest((own for own, _ in split[0]), VOCABULARY - 2)
    known = {word: 1 + number for number, word in enumerate(common)}
    kinds = {each: i for i, each in enumerate(sorted({k for _, own in split[0] for k in own}))}
    train, test = (
        [([known.get(w, 0) for w in own], [kinds.get(k, -1) for k in labels])
         for own, labels in rows]
        for rows in split
    )  # fmt: skip
    return Labelled(train, test, "tokens" if name == TAGS else "sequence", max(2, len(kinds)))


def measure(setting: Setting) -> Measured:
    """Fine-tune on growing parts of the labels, after pre-training on all texts and without it; on
    each data set there is, and in translation."""
    if setting.data is None:
        yield from labelling(setting, MADE, generated(setting))
        return
    there = [name for name, (folder, *_) in REAL.items() if setting.found(folder)]
    captions = setting.found("multi30k")
    if not there and not captions:
        setting.folder("sst2")  # says what is missing
    for name in there:
        yield from labelling(setting, name, read(setting, name))
    if captions:
        yield from translating(setting, captions)


def labelling(setting: Setting, name: str, data: Labelled) -> Measured:
    """Learn labels with and without pre-training, from several random sets of them."""
    few = setting.data is not None  # then there are more data sets than one
    steps, later = setting.pick((4000, 200), (150, 60) if few else (300, 120), (3, 3))
    counts, sets = setting.pick((30, 100, 300), (100, 300), (10,)), setting.pick(2, 1, 1)
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: {name}, seed {seed}, pre-training")
        known = small.seeded(seed, built, "masked")
        texts = real.hidden([ids for ids, _ in data.train], VOCABULARY, seed, 24)
        small.train(known, texts, steps, 3e-3, loss=real.hidden_loss, seed=seed)
        for count, drawn, kind in product(counts, range(sets), (AFTER, ALONE)):
            setting.report(f"bert_pretraining: {name}, seed {seed}, {count} labels, {kind}")
            model = small.seeded(seed, built, data.head, data.labels)
            if kind == AFTER:
                model.load_state_dict(known.state_dict(), strict=False)
            own = Random(f"labels {seed} {drawn}").sample(data.train, count)
            batches = small.choices(own, 24, f"batches {seed}", small.labelled)
            small.train(model, batches, later, 2e-3, loss=small.label_loss, seed=seed)
            yield {
                "data": name,
                "labels": count,
                "model": kind,
                "seed": seed,
                "set": drawn,
                "accuracy": small.label_accuracy(model, small.labelled(data.test)),
            }


def translating(setting: Setting, folder: Path) -> Measured:
    """Learn to translate few captions, with an encoder that has read all English ones and with a
    new one; neither with R-Drop."""
    count = setting.pick(3000, 1500, 30)
    text = real.captions(folder, count, setting.pick(300, 50, 4))
    plain = [line for line in read_lines(folder / "train.en.gz") if 0 < len(line.split()) <= 16]
    plain = plain[: setting.pick(None, 8000, 50)]
    texts = [ids[:LONGEST] for ids in text.tokenizer.encode(plain)]
    steps, later = setting.pick((800, 500), (120, 80), (2, 2))
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: translation, seed {seed}, pre-training")
        size = text.tokenizer.size
        known = small.seeded(seed, built, "masked", vocabulary_size=size, activation="relu")
        hidden = real.hidden(texts, size, seed, 32)
        small.train(known, hidden, steps, 3e-3, loss=real.hidden_loss, seed=seed)
        for kind in (AFTER, ALONE):
            setting.report(f"bert_pretraining: translation, seed {seed}, {kind}")
            shape = {"dropout": 0.1, "tie": "decoder", "positions": "rotary"}
            model = small.seeded(seed, small.transformer_of, text.vocabulary, **shape)
            if kind == AFTER:
                weights = {name: each.detach() for name, each in known.named_parameters()}
                as_source_side(weights)
                model.load_state_dict(weights, strict=False)
            pairs = small.choices(text.train, 32, f"translation {seed}")
            small.train(model, pairs, later, 2e-3, seed=seed)
            yield {
                "data": CAPTIONS,
                "labels": count,
                "model": kind,
                "seed": seed,
                "set": 0,
                **real.scored(model, text),
            }


def built(head: str, labels: int = 2, **changes: Any) -> bert.Bert:
    """A small BERT; with a label for each sequence it takes the mean of all tokens."""
    shape = {**small.WIDTH, "layers": 2, "dropout": 0.1, "positions": "rotary", "pool": "mean",
             "vocabulary_size": VOCABULARY, "max_length": LONGEST + 2}  # fmt: skip
    return bert.Bert(bert.Config(**{**shape, "head": head, "labels": labels, **changes}))


def draw(rows: Rows) -> Picture:
    """Accuracy by the number of labels, for each data set, and chrF of translation."""
    return slide(
        *(
            Chart(group, "labels", "chrf", "model", data, "pairs", "chrF", bars=True)
            if data == CAPTIONS
            else Chart(group, "labels", "accuracy", "model", data, "labels", "%", 100, bars=True)
            for (data,), group in grouped(rows, "data").items()
        )
    )


def judge(rows: Rows) -> Iterator[Verdict]:
    """For each data set, the gains over seeds and sets of labels, each the mean over all numbers of
    labels: it holds if their mean is above 0 by twice its standard error, and does not if it is
    below."""
    for (data,), group in grouped(rows, "data").items():
        key, form = ("chrf", ".1f") if data == CAPTIONS else ("accuracy", ".1%")
        gains = [
            mean(each, key, model=AFTER) - mean(each, key, model=ALONE)
            for each in grouped(group, "seed", "set").values()
        ]
        error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("inf")
        listed = {
            count: [f"{mean(own, key, model=kind):{form}}" for kind in (AFTER, ALONE)]
            for (count,), own in sorted(grouped(group, "labels").items())
        }
        better, tried = sum(gain > 0 for gain in gains), len(gains)
        because = Words(
            f"{'chrF' if data == CAPTIONS else 'accuracy'} after pre-training and without it: "
            f"{', '.join(f'{a} and {b} from {n:,}' for n, (a, b) in listed.items())}; it is "
            f"better in {better} of {tried} comparisons",
            f"{'chrF는' if data == CAPTIONS else '정확도는'} 사전 학습을 했을 때와 하지 않았을 때 "
            f"차례로 {', '.join(f'{n:,}개에서 {a}, {b}' for n, (a, b) in listed.items())}이다. "
            f"비교 {tried}번 가운데 {better}번 더 낫다",
        )
        helps = fmean(gains) > 0 if abs(fmean(gains)) > 2 * error else None
        part = Words(f"it helps: {data}", f"{IN_KOREAN.get(data, data)}에 도움이 된다")
        yield Verdict.of(helps, because, part)


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
    main=lambda row: row["labels"] == 30,
    korean=IN_KOREAN,
)
