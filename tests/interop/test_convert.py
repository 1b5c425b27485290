"""What `transduct convert` refuses, before it writes; what it writes is in test_cli.py and in the
tests of interop."""

import json
import re
from pathlib import Path

import pytest

from tests.refusals import refusal
from transduct.interop.convert import convert

NEITHER = "give --format, for another tool, or --precision and --shortlist, for a model of"
TOGETHER = "--with puts models of ours together as they are; make a directory of them"


@pytest.mark.parametrize(
    "options, message",
    [
        (("tensorflow", None, None, []), "unknown 'tensorflow'; known are: ctranslate2, hugg"),
        ((None, "int3", None, []), "unknown 'int3'; known are: int8"),
        ((None, None, None, []), NEITHER),
        (("onnx", "int8", None, []), NEITHER),
        (("onnx", None, None, ["other"]), TOGETHER),
        ((None, None, Path("text"), ["other"]), TOGETHER),
    ],
)
def test_options_that_ask_for_nothing_or_too_much_are_refused(
    trained_run, tmp_path, options, message
):
    with refusal(re.escape(message)):
        convert(str(trained_run), tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


FIRST = "Hugging Face's; make a model of ours of it: transduct convert {} OUT"


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("marian", (None, None, Path("text"), []), FIRST),
        ("marian", (None, "int8", None, []), FIRST),
        ("t5", (None, "int8", None, []), FIRST),
        ("t5", (None, None, None, []), "vocab_size"),
    ],
)
def test_another_tool_s_model_is_made_one_of_ours_first(tmp_path, kind, options, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with refusal(re.escape(message.format(tmp_path))):
        convert(str(tmp_path), tmp_path / "out", *options)
