"""Languages are found by any of their codes and names."""

import pytest

from tests.refusals import refusal
from transduct.data.languages import find, listed, named

FLORES = ["eng_Latn", "kor_Hang", "zho_Hans", "zho_Hant", "arb_Arab", "pes_Arab", "nob_Latn"]


@pytest.mark.parametrize(
    "given, code",
    [
        *(("en", "eng_Latn"), ("ENG", "eng_Latn"), ("English", "eng_Latn"), ("ko", "kor_Hang")),
        *(("kor-Hang", "kor_Hang"), ("zh", "zho_Hans"), ("zh-TW", "zho_Hant")),
        *(("zho_Hant", "zho_Hant"), ("ar", "arb_Arab"), ("Farsi", "pes_Arab"), ("no", "nob_Latn")),
    ],
)
def test_any_name_finds_the_model_s_own(given, code):
    assert find(given, FLORES) == code


def test_one_model_s_code_finds_another_s():
    assert find("eng_Latn", ["en", "ko"]) == "en"
    assert find("kor_Hang", ["en_XX", "ko_KR"]) == "ko_KR"
    assert find("tlh", ["tlh", "en"]) == "tlh", "a model's own code needs no list"


def test_a_wrong_one_is_refused_and_the_nearest_named():
    with refusal(r"'Corean'; the nearest is 'kor_Hang' \(Korean\), of"):
        find("Corean", FLORES)
    with refusal("unknown language 'qqqqqq'; this model has eng_Latn"):
        find("qqqqqq", FLORES)
    with refusal("unknown language 'en_Cyrl'"):
        find("en_Cyrl", FLORES)
    assert named("kor_Hang") == "Korean"
    assert listed(map(str, range(14))).endswith("11 and 2 more (see: transduct describe)")
