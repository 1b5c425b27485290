"""The tokens that stand around a text for its languages; real models' are in test_published.py."""

from types import SimpleNamespace

from tests.refusals import refusal
from transduct.data.tokenizer import SpecialTokens, Tokenizer
from transduct.predictors.languages import Languages, special_tokens_of

WORDS = SimpleNamespace(id_of={"<en>": 7, "<ko>": 8, "<pad>": 9}.get, encode=lambda texts: [[5, 6]])
PREFIXED = Languages(["en", "ko"], before=["<{from}>"], begin=["<{to}>"])


def asked(source="", target=""):
    return SimpleNamespace(source_language=source, target_language=target)


def test_a_model_of_one_pair_of_languages_has_nothing_around_a_text():
    assert special_tokens_of(None, asked(), [WORDS]) == SpecialTokens()
    with refusal("one pair of languages; leave out --to, or target_language, which is 'ko'"):
        special_tokens_of(None, asked(target="ko"), [WORDS])


def test_languages_are_tokens_around_the_source_and_at_the_beginning_of_the_output():
    special = special_tokens_of(PREFIXED, asked("English", "ko"), [WORDS])
    assert special == SpecialTokens(before=(7,), begin=(8,))
    assert special.source([3, 4]) == [7, 3, 4, Tokenizer.END]
    assert special.first == [Tokenizer.BEGIN, 8]
    assert PREFIXED.shown() == ["en English", "ko Korean"]


def test_a_text_before_the_source_is_encoded_and_a_short_source_is_filled_up():
    about = Languages(text="to text:", padding="<pad>", padded=6)
    special = special_tokens_of(about, asked(), [WORDS])
    assert special.source([3]) == [5, 6, 3, Tokenizer.END, 9, 9]


def test_a_language_that_is_needed_and_not_given_is_asked_for():
    with refusal("to translate from: give --from, or source_language"):
        special_tokens_of(PREFIXED, asked(target="ko"), [WORDS])


def test_a_token_that_the_tokenizer_lacks_is_named():
    lacking = Languages(["en"], before=["<{from}>"], after=["<none>"])
    with refusal("the tokenizer has no token '<none>'; copy the model"):
        special_tokens_of(lacking, asked("en"), [WORDS])
