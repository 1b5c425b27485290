"""Tables of transcripts are read as others write them, and each recording has its own row."""

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refusal
from tests.tones import RATE, encoded, tone
from transduct.data.audio import Features
from transduct.data.files import Refused
from transduct.data.recordings import SoundSource, Tally, read_recordings
from transduct.data.transcripts import Transcripts

FEATURES = Features(rate=RATE, bands=40)
TABLES = {  # of each: the table's name, its lines, the recordings, and columns where they are given
    "Common Voice": (
        "cv/train.tsv",
        "client_id\tpath\tsentence\tup\nanna\tcv_1.mp3\teins zwei\t2\nbela\tcv_2.mp3\tdrei\t0\n",
        ["cv/clips/cv_1.wav", "cv/clips/cv_2.wav"],
        None,
    ),
    "folders in a header's names": (
        "cv/train.tsv",
        "path\tsentence\tspeaker\nclips/cv_1.wav\teins zwei\tanna\nclips/cv_2.wav\tdrei\tbela\n",
        ["cv/clips/cv_1.wav", "cv/clips/cv_2.wav"],
        None,
    ),
    "LJSpeech": (
        "LJSpeech-1.1/metadata.csv",
        "LJ001-0001|1 2, he said|eins zwei\nLJ001-0002|3|drei\n",
        ["LJSpeech-1.1/wavs/LJ001-0001.wav", "LJSpeech-1.1/wavs/LJ001-0002.flac"],
        None,
    ),
    "bars, two columns and folders": (
        "list.txt",
        "wavs/a.wav|eins zwei\nwavs/b.wav|drei\n",
        ["x/wavs/a.wav", "x/wavs/b.wav"],
        None,
    ),
    "Kaldi's text": ("text", "utt-1 eins zwei\nutt-2 drei\n", ["a/utt-1.wav", "a/utt-2.wav"], None),
    "commas and quotes": (
        "metadata.csv",
        'file_name,transcription\na.wav,"eins zwei"\nb.wav,drei\n',
        ["s/a.wav", "s/b.wav"],
        None,
    ),
    "tabs without endings": ("t.txt", "a\teins zwei\nb\tdrei\n", ["s/a.WAV", "s/b.flac"], None),
    "places of another computer": (
        "t.tsv",
        "C:\\data\\a.mp3\teins zwei\nC:\\data\\b.mp3\tdrei\n",
        ["s/a.wav", "s/b.wav"],
        None,
    ),
    "columns by name": (
        "t.tsv",
        "what\twhere\tby\neins zwei\ta\tanna\ndrei\tb\tbela\n",
        ["s/a.wav", "s/b.wav"],
        ["where", "what", "by"],
    ),
    "columns by number below a header": (
        "t.tsv",
        "id\tn\ttext\traw\na\t1\tx\teins zwei\nb\t2\ty\tdrei\n",
        ["s/a.wav", "s/b.wav"],
        [0, 3],
    ),
}


def write(root: Path, table: str, lines: str, sounds: list[str]) -> None:
    for number, name in enumerate(sounds):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        kind = "FLAC" if name.endswith("flac") else "WAV"
        (root / name).write_bytes(encoded(tone(number), kind=kind))
    (root / table).write_text(lines, encoding="utf-8")


def read(source, root, policy="stop", others=()):
    tally = Tally(Refused(policy))
    return list(read_recordings(source, root, FEATURES, 30.0, tally, others)), tally


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("table, lines, sounds, columns", TABLES.values(), ids=TABLES)
def test_tables_are_read_as_they_are_written(table, lines, sounds, columns, within, tmp_path):
    """Whether the folder of the recordings is given or one above it."""
    write(tmp_path, table, lines, sounds)
    folder = Path(sounds[0]).parent if within else Path(sounds[0]).parts[0]
    found, _ = read(SoundSource(str(folder), table, columns=columns), tmp_path)
    assert [each.text for each in found] == ["eins zwei", "drei"]
    with_speakers = "anna" in lines
    assert [each.speaker for each in found] == (["anna", "bela"] if with_speakers else ["", ""])


@pytest.mark.parametrize("place", ["sounds", "kaldi/sounds"])
def test_kaldis_list_names_the_files_of_ids(place, tmp_path):
    """From `data.root`, from the folder of the list, or from the root of the disk."""
    write(tmp_path, "text", "utt.2 drei\nutt.1 eins\n", [f"{place}/a.wav", f"{place}/b.wav"])
    (tmp_path / "kaldi").mkdir(exist_ok=True)
    whole = tmp_path / place / "b.wav"
    (tmp_path / "kaldi" / "wav.scp").write_text(f"utt.1 sounds/a.wav\nutt.2  {whole}\n")
    source = SoundSource("kaldi/wav.scp", "text")
    assert [(each.name, each.text) for each in read(source, tmp_path)[0]] == [
        ("utt.1", "eins"),
        ("utt.2", "drei"),
    ]
    (tmp_path / "kaldi" / "wav.scp").write_text("utt.1 sph2pipe -f wav a.sph |\n")
    with refusal(r"wav\.scp:1: found 'utt.1 sph2pipe .*write what a command gives to a file first"):
        read(source, tmp_path)


def test_kaldis_segments_are_parts_of_recordings(tmp_path):
    """A `segments` file beside `wav.scp` names utterances; -1 is the end of the recording."""
    long = np.concatenate([tone(1), tone(2), tone(3)])
    length, third = len(tone(1)) / RATE, (len(tone(1)) + len(tone(2))) / RATE
    (tmp_path / "long.wav").write_bytes(encoded(long))
    (tmp_path / "wav.scp").write_text("rec long.wav\n")
    (tmp_path / "text").write_text("utt.a eins\nutt.b drei\n")
    lines = f"utt.a rec 0 {length}\nutt.b rec {third} -1 A\n"
    (tmp_path / "segments").write_text(lines)
    found, _ = read(SoundSource("wav.scp", "text"), tmp_path)
    assert [(each.name, each.text) for each in found] == [("utt.a", "eins"), ("utt.b", "drei")]
    for each, number in zip(found, (1, 3)):
        np.testing.assert_allclose(each.samples, tone(number), atol=1e-4)
    for line in ("utt.a gone 0 1", "utt.a rec 1", "utt.a rec 1 0.5", "utt.a rec a b"):
        (tmp_path / "segments").write_text(f"{line}\n")
        with refusal(rf"segments:1: found '{line}', expected an id, the id of a recording in wav"):
            read(SoundSource("wav.scp", "text"), tmp_path)


def test_a_recording_without_a_text_names_the_nearest_row(tmp_path):
    write(tmp_path, "t", "utt-1|eins\nutt-2|zwei\n", ["s/utt-1.wav", "s/utt_2.wav"])
    with refusal(r"utt_2\.wav: has no text in t \(the nearest row is 'utt-2', line 2\); write its"):
        read(SoundSource("s", "t"), tmp_path)
    found, tally = read(SoundSource("s", "t"), tmp_path, "skip")
    assert [each.text for each in found] == ["eins"]
    assert "the nearest row is 'utt-2'" in tally.refused.summary()


def test_a_folder_is_divided_by_the_tables_of_its_parts(tmp_path):
    write(tmp_path, "train.tsv", "a\teins\n", ["clips/a.wav", "clips/b.wav"])
    (tmp_path / "dev.tsv").write_text("b.mp3\tzwei\n")
    train, dev = (SoundSource("clips", name) for name in ("train.tsv", "dev.tsv"))
    for one, text in ((train, "eins"), (dev, "zwei")):
        found, tally = read(one, tmp_path, others=[train, dev, SoundSource("x", "gone.tsv")])
        assert [each.text for each in found] == [text]
        assert not tally.refused.errors
    with refusal(r"b\.wav: has no text in train\.tsv"):
        read(train, tmp_path, others=[train])


def test_no_recording_takes_the_row_of_another(tmp_path):
    write(tmp_path, "t", "a\teins\n", ["s/one/a.wav", "s/two/a.wav"])
    with refusal(r"'one/a\.wav' and 'two/a\.wav' have one row in t, 'a'; write the folders"):
        read(SoundSource("s", "t"), tmp_path)
    (tmp_path / "t").write_text("one/a\teins\ntwo/a\tzwei\n")
    assert [each.text for each in read(SoundSource("s", "t"), tmp_path)[0]] == ["eins", "zwei"]
    (tmp_path / "s" / "two" / "a.wav").unlink()
    found, _ = read(SoundSource("s/one", "t"), tmp_path, "skip")  # the folder decides
    assert [each.text for each in found] == ["eins"]
    write(tmp_path, "t", "one/a\teins\ntwo/a\tzwei\n", ["flat/a.wav"])
    with refusal(r"'a\.wav' may be 'one/a' or 'two/a' of t; give the folder above as sounds"):
        read(SoundSource("flat", "t"), tmp_path)


@pytest.mark.parametrize(
    "name, lines, columns, message",
    [
        ("a.tsv", "a.wav one\n", None, "a.tsv:1: found 'a.wav one', expected file, text .*tabs"),
        ("a", "a.wav\tone\ttheo\t7\n", None, r"a:1: found 'a.wav\\tone\\ttheo\\t7', expected"),
        ("a", "a|one\nb\n", None, "a:2: found 'b', expected .* with bars between; fix the line or"),
        ("a", "a one\nb\n", None, "a:2: found 'b', expected .* with a blank between"),
        ("a.csv", "id,text\nb\n", None, "a.csv:2: found 'b', expected .* with commas between"),
        ("a", "a.wav\tone\na.wav\ttwo\n", None, "a:2: 'a.wav' has a text already; keep one"),
        ("a.tsv", "\na.wav\tone\n", None, "a.tsv:1: found '', expected file, text and"),
        ("a", "a.wav\t \n", None, "a:1: the text of 'a.wav' is empty; write one"),
        ("a.json", '[{"file": "a"}]', None, "a.json: found JSON, expected a table; write a line f"),
        ("a", '{"file": "a"}', None, "a: found JSON, expected a table; write a line for each"),
        ("a", "a\tb\n", ["b", "c"], "a:1: no column 'c'; set columns to some of: a, b"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(name, lines, columns, message, tmp_path):
    (tmp_path / name).write_text(lines)
    with refusal(message):
        Transcripts(tmp_path / name, columns, Refused("stop"))


def test_what_makes_no_sense_is_left_out_where_the_recipe_says_so(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a.wav\tone\nb.wav\t\n\na.wav\tagain\nc\t\xff\n")
    refused = Refused("skip")
    table = Transcripts(tmp_path / "a.tsv", None, refused)
    assert {name: row.text for name, row in table.rows.items()} == {
        "a.wav": "one", "b.wav": None, "c": None,
    }  # fmt: skip
    for number, (line, said) in enumerate(
        [
            (2, "the text of 'b.wav' is empty"),
            (3, "found ''"),
            (4, "'a.wav' has a text already"),
            (5, "not UTF-8"),
        ]
    ):
        assert f"a.tsv:{line}: {said}" in refused.errors[number]
    assert table.missing() == ["a.wav"]
    (tmp_path / "none").write_text("")
    assert Transcripts(tmp_path / "none", None, refused).nearest("a") == ""
