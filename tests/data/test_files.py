"""Files are opened and decompressed whole or refused by name, and broken ones are counted."""

import os
from unicodedata import normalize

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.data import files
from transduct.data.files import Refused, names_of, pack, require_files, unpack
from transduct.data.recordings import SoundSource
from transduct.data.sources import DataConfig, TextSource
from transduct.errors import MissingExtra, TransductError


def test_sources_name_their_files():
    sources = [
        SoundSource("a.tar", "a.tsv"),
        TextSource(pairs="b.tsv", columns=[1]),
        TextSource(text=["c", "d"]),
    ]
    assert names_of(sources) == ["a.tar", "a.tsv", "b.tsv", "c", "d"]


def test_a_library_that_is_missing_is_no_files_fault():
    refused = Refused("skip")
    with pytest.raises(MissingExtra, match="Pillow is not installed"), refused.each():
        raise MissingExtra("Pillow is not installed")
    assert not refused.errors


def test_files_that_a_recipe_names_are_looked_for(tmp_path):
    here, gone = TextSource(pairs="here.tsv"), TextSource(pairs="gone.tsv")
    (tmp_path / "here.tsv").touch()
    require_files(DataConfig([here], root=str(tmp_path)))
    # not needed for training
    require_files(DataConfig([here], valid=here, test=gone, root=str(tmp_path)))
    for data in (
        DataConfig([here, gone], root=str(tmp_path)),
        DataConfig([here], valid=gone, root=str(tmp_path)),
    ):
        with refusal(f"^{tmp_path}/gone.tsv: no such file; check the path"):
            require_files(data)


@pytest.mark.parametrize(
    "name, message",
    [
        ("x" * 300, r"x: cannot be read \(File name too long\); check it and its folder"),
        ("here.tsv/deeper", "here.tsv/deeper: no such file; check the path"),
        ("\udcff.tsv", "\ufffd.tsv: its name is not UTF-8; rename it"),
    ],
)
def test_files_that_cannot_be_looked_for_are_said(tmp_path, name, message):
    (tmp_path / "here.tsv").touch()
    (tmp_path / os.fsdecode(b"\xff.tsv")).touch()
    with refusal(message):
        require_files(DataConfig([TextSource(source=name, target=name)], root=str(tmp_path)))


def test_pipes_are_not_trained_on(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    with refusal(r"pipe\.tsv: a pipe, which can be read once; training reads more often: wr"):
        require_files(DataConfig([TextSource(pairs="pipe.tsv")], root=str(tmp_path)))


def test_broken_files_stop_or_are_counted_and_named():
    def broken(number):
        raise TransductError(f"{number}.png: broken")

    expected = r"0\.png: broken; or leave such out with data\.broken=skip"
    with refusal(expected), Refused("stop").each():
        broken(0)
    with refusal(r"^0\.png: broken$"), Refused("stop", advise=False).each():
        broken(0)
    refused = Refused("skip")
    assert refused.summary() == ""
    for number in range(12):
        with refused.each():
            broken(number)
    assert refused.dropped == {"broken": 12}
    assert (
        refused.summary()
        == "".join(f"{number}.png: broken; " for number in range(10)) + "and 2 more"
    )
    said = []
    refused.report(said.append, "training, ")
    refused.trimmed.append("a box")
    refused.report(said.append)
    assert said == [
        f"training, 12 left out: {refused.summary()}",
        f"12 left out: {refused.summary()}",
        "1 kept in part: a box",
    ]


def test_only_errors_that_a_user_can_mend_are_refused():
    with pytest.raises(ZeroDivisionError), Refused("skip").each():
        raise ZeroDivisionError


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 3072])
def test_packed_bytes_come_back(size):
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    words = pack(data)
    assert words.dtype == np.int32
    assert len(words) == (size + 3) // 4
    assert np.array_equal(unpack(words.astype(np.int64), size), data)
    assert np.array_equal(pack(data.tobytes()), words)


def test_packed_numbers_come_back():
    samples = np.array([-32768, 5, 32767], np.int16)
    assert np.array_equal(unpack(pack(samples), 3, np.int16), samples)


def test_labels_are_composed_unless_a_model_tells_their_forms_apart():
    forms = [normalize(form, "긍정") for form in ("NFC", "NFD")]
    assert files.composed_labels(["a", forms[1]]) == ["a", forms[0]]
    assert files.composed_labels(forms) == forms
