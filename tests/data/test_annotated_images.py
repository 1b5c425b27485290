"""Scenes: what is pasted where, what is drawn from what, and what is refused."""

import io
import json
import re
import tarfile
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refusal
from tests.transduct_corpora.test_collages import paste
from transduct.data import annotated_images
from transduct.data import lines as lines_module
from transduct.data.annotated_images import (
    Collage,
    Scenes,
    SceneSource,
    packed,
    read_examples,
    read_scenes,
)
from transduct.data.corpus import build, write_rows
from transduct.data.files import Refused
from transduct.data.images import ImageSource, read_labelled
from transduct.errors import TransductError
from transduct.records import record
from transduct_corpora.collages import pasted

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def number_of(label):
    if label not in COLOURS:
        raise TransductError(f"unknown label '{label}'")
    return list(COLOURS).index(label)


def write_photographs(folder, each=4, name="photographs.tar"):
    """Pictures of one colour, in folders named by it."""
    with tarfile.open(folder / name, "w") as archive:
        for colour, value in COLOURS.items():
            for number in range(each):
                data = io.BytesIO()
                Image.new("RGB", (40, 32), value).save(data, "PNG")
                member = tarfile.TarInfo(f"{colour}/{number}.png")
                member.size = len(data.getvalue())
                archive.addfile(member, io.BytesIO(data.getvalue()))


@pytest.fixture
def annotated(tmp_path):
    """A folder of pictures 40 wide and 20 high, and a function that writes their lines."""
    (tmp_path / "pictures").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (40, 20), COLOURS["red"]).save(tmp_path / "pictures" / f"{name}.png")

    def write(*lines):
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / "boxes.jsonl").write_text("".join(f"{line}\n" for line in text))
        return SceneSource("pictures", boxes="boxes.jsonl")

    write.root = tmp_path
    return write


def line(name="a.png", boxes=((4, 2, 24, 12),), labels=("red",)):
    return {"file": name, "boxes": boxes, "labels": labels}


def read(source, root, policy="stop", side=20):
    refused = Refused(policy)
    return list(read_examples(source, root, side, number_of, refused)), refused


def test_a_mirrored_scene_has_its_boxes_mirrored():
    scene = paste(2)
    mirrored = annotated_images.flipped(scene)
    for (x0, y0, x1, y1), (u0, v0, u1, v1) in zip(
        scene.boxes.astype(int), mirrored.boxes.astype(int)
    ):
        assert (scene.picture[y0:y1, x0:x1][:, ::-1] == mirrored.picture[v0:v1, u0:u1]).all()
    np.testing.assert_array_equal(annotated_images.flipped(mirrored).boxes, scene.boxes)


def test_photographs_are_shared_out_by_their_names(tmp_path):
    write_photographs(tmp_path, each=30)

    def kept(low, high):
        source = SceneSource("photographs.tar", collage=Collage(photographs=[low, high]))
        return len(read(source, tmp_path)[0])

    parts = [kept(0.0, 0.3), kept(0.3, 0.9), kept(0.9, 1.0)]
    assert sum(parts) == kept(0.0, 1.0) == 90
    assert 15 < parts[0] < 40


def test_a_photograph_is_its_middle_square_and_its_folder_its_label(tmp_path):
    write_photographs(tmp_path, each=1)
    examples, _ = read(SceneSource("photographs.tar", collage=Collage()), tmp_path)
    assert [example.labels.tolist() for example in examples] == [[0], [1], [2]]
    assert all(example.picture.shape == (32, 32, 3) for example in examples)
    assert examples[1].picture[5, 5].tolist() == [0, 255, 0]


def test_scenes_to_measure_on_are_always_the_same(tmp_path):
    write_photographs(tmp_path)
    source = SceneSource("photographs.tar", collage=Collage(count=5))
    first, second = (
        read_scenes(source, tmp_path, 64, number_of, Refused("stop")) for _ in range(2)
    )
    assert len(first) == 5
    assert all((a.picture == b.picture).all() for a, b in zip(first, second))
    assert len({scene.picture.tobytes() for scene in first}) == 5
    rows = list(read_examples(source, tmp_path, 64, number_of, Refused("stop")))
    for seed in (0, 1):  # and of no training
        trained = pasted(
            rows.__getitem__, len(rows), source.collage, 64, annotated_images.generator(seed, 0, 0)
        )
        assert (trained.picture != first[0].picture).any()


# a corpus of both


def corpus_of(sources, root, side=64):
    def fill(folder):
        parts = []
        for source in sources:
            rows = [packed(example) for example in read(source, root, side=side)[0]]
            parts.append(
                (
                    1.0,
                    [
                        [
                            (np.concatenate(c), np.array([len(each) for each in c]))
                            for c in zip(*rows)
                        ]
                    ],
                )
            )
        return write_rows(folder, 3, parts)

    return build(root / "corpus", {}, fill, str)


def test_scenes_of_training_come_source_after_source(tmp_path, annotated):
    write_photographs(tmp_path)
    sources = [
        SceneSource("photographs.tar", collage=Collage(count=7)),
        annotated(line(), line("b.png", [], [])),
        SceneSource("photographs.tar", collage=Collage(count=3, fresh=False)),
    ]
    corpus = corpus_of(sources, tmp_path)
    scenes = Scenes(corpus, sources, 64, seed=1, flip=False)
    assert len(scenes) == 7 + 2 + 3
    [own, empty] = read(sources[1], tmp_path, side=64)[0]
    assert (scenes.scene(7, 0).picture == own.picture).all()
    np.testing.assert_array_equal(scenes.scene(7, 0).boxes, own.boxes)
    assert scenes.scene(8, 0).boxes.shape == empty.boxes.shape == (0, 4)

    def same(number, seed=1):
        others = Scenes(corpus, sources, 64, seed, flip=False)
        return (
            scenes.scene(number, 0).picture.tobytes() == others.scene(number, 1).picture.tobytes()
        )

    assert not same(0), "a fresh scene is another in each epoch"
    assert same(8)
    assert same(9), "one that is not stays"
    assert not same(9, seed=2)


def test_half_of_the_scenes_are_mirrored_drawn_anew_each_epoch(tmp_path, annotated):
    source = annotated(line(), line("b.png"))
    corpus = corpus_of([source], tmp_path)
    straight, mirrored = (Scenes(corpus, [source], 64, 1, flip).scene for flip in (False, True))
    turned = [(straight(0, epoch).boxes != mirrored(0, epoch).boxes).any() for epoch in range(60)]
    assert 15 < sum(turned) < 45
    # first of all for a collage
    drawn = [annotated_images.generator(1, epoch, 0).random() < 0.5 for epoch in range(60)]
    assert 15 < sum(one == other for one, other in zip(turned, drawn)) < 45, (
        "whatever else is drawn for it"
    )


# one's own pictures


COCO = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": []}


@pytest.mark.parametrize("lines", [[COCO], json.dumps(COCO, indent=1).splitlines(), [[COCO]]])
def test_a_coco_file_is_told_what_is_expected(annotated, lines):
    message = (
        "boxes.jsonl:1: found one JSON value for all pictures, as in a COCO file; expected a line "
        'for each picture: {"file": name, "boxes": [[x0, y0, x1, y1], ..], "labels": [name, ..]}; '
        "write that, with x1 = x0 + width and y1 = y0 + height"
    )
    with refusal(re.escape(message)):
        read(annotated(*lines), annotated.root)


def test_a_large_coco_file_is_not_read_to_its_end(annotated, monkeypatch):
    monkeypatch.setattr(lines_module, "BLOCK", 100)
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1000)
    with refusal(r"boxes\.jsonl:1: found one JSON value for all"):
        read(annotated(COCO | {"info": "x" * 1000}), annotated.root)
    with refusal(r"boxes\.jsonl:2: found a line of more than 1,000 bytes"):
        read(annotated(line(), "x" * 1001), annotated.root)


def test_blank_lines_at_the_end_of_boxes_are_none(annotated):
    [examples, _] = read(annotated(line(), line("b.png"), "", " ", ""), annotated.root)
    assert len(examples) == 2
    with refusal(r"boxes.jsonl:2: not a line of JSON \(.*\), expected"):
        read(annotated(line(), "", line("b.png")), annotated.root)


def test_boxes_follow_their_picture_to_its_new_size(annotated):
    [example, other], _ = read(
        annotated(line(), line("b.png", [[0, 0, 40, 20], [10, 10, 20, 20]], ["green", "blue"])),
        annotated.root,
    )
    assert example.picture.shape == (20, 20, 3)
    assert example.boxes.tolist() == [[2, 2, 12, 12]]
    assert other.boxes.tolist() == [[0, 0, 20, 20], [5, 10, 10, 20]]
    assert other.labels.tolist() == [1, 2]


def test_what_of_a_box_lies_outside_is_cut_off(annotated):
    outside = line(boxes=[[-10, 10, 20, 99]])
    [example, _], refused = read(
        annotated(outside, line("b.png", [[0, 0, 40.5, 20]])), annotated.root
    )
    assert example.boxes.tolist() == [[0, 10, 10, 20]]
    assert refused.trimmed == [
        "boxes.jsonl:1: a.png: box [-10.0, 10.0, 20.0, 99.0], of a picture of 40 x 20"
    ]


def test_blanks_around_a_label_make_no_other(annotated):
    [example, _], _ = read(
        annotated(line(labels=["red "]), line("b.png", labels=[" red"])), annotated.root
    )
    assert example.labels.tolist() == [0]


BROKEN = {
    r"boxes.jsonl:1: a.png: box \[9.0, 2.0, 9.0, 12.0\] has no area": line(boxes=[[9, 2, 9, 12]]),
    r"boxes.jsonl:1: a.png: box \[9.0, 12.0, 19.0, 2.0\] has no area": line(boxes=[[9, 12, 19, 2]]),
    r"box \[50.0, 2.0, 60.0, 12.0\] lies outside the picture, which is 40 x 20": line(
        boxes=[[50, 2, 60, 12]]
    ),
    "a.png: unknown label 'pink'": line(labels=["pink"]),
    "expected a label, a word, for each box": line(labels=["red", "red"]),
    "boxes.jsonl:1: a.png: expected a label, a word": line(labels=[3]),
    "for each box, four numbers": line(boxes=[[1, 2, 3]]),
    "four numbers; fix the line": line(boxes=[[1, 2, 3, float("inf")]]),
    r'boxes.jsonl:1: not a line of JSON \(.*\), expected {"file": .., "boxes"': "no JSON",
    r'no key \'boxes\' in it, expected {"file": .., "boxes": \[..\], "labels"': {"file": "a.png"},
    "the first a name; fix the line": '{"boxes": []}',
    ", the first a name": "3",
    "a.png: expected a label, a word, for each box, four numbers": line(
        boxes=[["1", "2", "3", "4"]]
    ),
    "a.png: expected a label, a word, for each box, four num": line(boxes=[[True, 2, 3, 4]]),
    "boxes.jsonl:1: found an unpaired surrogate, expected text; fix": line(labels=["c\ud800at"]),
    "boxes.jsonl:1: found an unpaired surrogate, expected text": line(name="\ud800.png"),
    r"\(int too large": line(boxes=[[10**400, 2, 3, 4]]),
    r"\(maximum recursion": "[" * 100_000,
    "a.png: expected a label, a word, for each box, four": line(labels="r"),
    "1: a.png: expected a label, a word, for each": line(labels=[" "]),
    r'1: expected {"file": .., "boxes": .*, the first a name; fix the line': line(name=3),
}
NAMELESS = ("no JSON", "3", '{"boxes": []}', "[" * 100_000, line(name=3), line(name="\ud800.png"))


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_line_stops_or_is_counted(annotated, message):
    source = annotated(BROKEN[message], line("b.png"))
    with refusal(message):
        read(source, annotated.root)
    examples, refused = read(source, annotated.root, "skip")
    assert len(examples) == 1
    nameless = BROKEN[message] in NAMELESS
    assert len(refused.errors) == 1 + nameless, "a picture goes with its line, if that says which"
    assert ("found no line for it" in refused.summary()) == nameless


def test_a_refused_line_leaves_no_label(annotated):
    def labels_of(*lines):
        labels, refused = {}, Refused("skip")
        source = annotated(*lines)
        found = list(
            read_examples(
                source,
                annotated.root,
                20,
                lambda label: labels.setdefault(label, len(labels)),
                refused,
            )
        )
        return len(found), list(labels), len(refused.errors)

    assert labels_of(line(boxes=[[9, 2, 9, 12]], labels=["ghost"]), line("b.png")) == (
        1,
        ["red"],
        1,
    )
    assert labels_of(line(boxes=[[90, 2, 99, 12]], labels=["ghost"]), line("b.png")) == (
        1,
        ["red"],
        1,
    )
    assert labels_of(line(labels=[""]), line("b.png")) == (1, ["red"], 1)


def test_the_second_line_of_a_picture_counts_if_the_first_is_broken(annotated):
    examples, refused = read(
        annotated(line(labels=[3]), line(), line("b.png")), annotated.root, "skip"
    )
    assert len(examples) == 2
    assert len(refused.errors) == 1


def test_a_broken_line_without_its_picture_counts_once(annotated):
    _, refused = read(
        annotated(line(), line("b.png"), line("c.png", labels=[3])), annotated.root, "skip"
    )
    assert len(refused.errors) == 1


def test_lines_and_pictures_belong_together(annotated):
    with refusal(r"pictures: b.png: found no line for it in boxes.jsonl"):
        read(annotated(line()), annotated.root)
    with refusal(r"boxes.jsonl:3: c.png: found boxes without their picture in pictures"):
        read(annotated(line(), line("b.png"), line("c.png")), annotated.root)
    with refusal(r"boxes.jsonl:2: 'a.png' has a line already, 1"):
        read(annotated(line(), line()), annotated.root)


def test_broken_pictures_and_photographs_without_a_folder_are_named(annotated):
    with refusal(r"pictures: a.png: found no label for it; put it into a folder that is named"):
        read(SceneSource("pictures", collage=Collage()), annotated.root)
    (annotated.root / "pictures" / "a.png").write_bytes(b"no picture")
    with refusal(r"pictures: a.png: not a whole picture"):
        read(annotated(line(), line("b.png")), annotated.root)


def test_nothing_to_measure_on(tmp_path):
    (tmp_path / "empty").mkdir()
    with refusal("empty: found no picture to measure on"):
        read_scenes(
            SceneSource("empty", collage=Collage()), tmp_path, 64, number_of, Refused("stop")
        )


# records


@pytest.mark.parametrize(
    "values, message",
    [
        ({"objects": [0, 3]}, r"objects is \[0, 3\], must be two numbers from 1 on"),
        ({"sizes": [40, 20]}, r"sizes is \[40, 20\], must be two numbers from 4 on"),
        (
            {"photographs": [0.5, 0.5]},
            r"photographs is \[0.5, 0.5\], must be two numbers from 0 to 1",
        ),
    ],
)
def test_impossible_collages_are_refused(values, message):
    with refusal(message):
        record(Collage, values, "collage")


def test_a_source_has_boxes_or_makes_scenes():
    for source in (lambda: SceneSource("a"), lambda: SceneSource("a", "b", Collage())):
        with pytest.raises(ValueError, match="exactly one of boxes"):
            source()
    assert SceneSource("a", "b").files() == ["a", "b"]


@pytest.mark.parametrize("held, asked", [("NFC", "NFD"), ("NFD", "NFC")])
def test_files_and_labels_are_one_in_either_form_of_unicode(tmp_path, held, asked):
    name, label = "고양이/é.png", "긍정"
    (tmp_path / "all" / normalize(held, name)).parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "all" / normalize(held, name))
    line = {
        "file": normalize(asked, name), "boxes": [[0, 0, 4, 4]], "labels": [normalize(asked, label)]
    }  # fmt: skip
    (tmp_path / "boxes").write_text(json.dumps(line, ensure_ascii=False), encoding="utf-8")
    seen = []

    def number_of(label):
        seen.append(label)
        return 0

    source = SceneSource("all", "boxes")
    assert len(list(read_examples(source, tmp_path, 8, number_of, Refused("stop")))) == 1
    assert seen == [normalize("NFC", label)]
    (tmp_path / "captions").write_text(f"{normalize(asked, name)}\ta cat\n", encoding="utf-8")
    for pictures, expected in (
        (ImageSource("all", "captions"), "a cat"),
        (ImageSource("all"), normalize("NFC", "고양이")),
    ):
        [(found, _, said)] = read_labelled(pictures, tmp_path, Refused("stop"))
        assert (found, said) == (normalize("NFC", name), expected)
