"""The page in a real browser."""

import pytest


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_in_the_reader_s_language(reader, language, width, dark):
    reader.open(language=language, width=width, dark=dark)
    assert reader.run("return document.documentElement.lang") == language
    reader.check()
