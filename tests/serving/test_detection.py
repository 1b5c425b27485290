"""The language of a text, among those that are served."""

from transduct.serving.detection import detect


def test_the_likeliest_of_the_served_languages_comes_first():
    codes = ["en", "de", "ko"]
    texts = {"en": "Where is the house?", "de": "Wo ist das Haus?", "ko": "집이 어디예요?"}
    assert {text: detect(text, codes)[0][0] for text in texts.values()} == {
        text: code for code, text in texts.items()
    }
    found = detect("Où est la maison ?", codes)
    assert sorted(code for code, _ in found) == sorted(codes)
    assert abs(sum(sure for _, sure in found) - 100) < 1
    assert detect("anything", ["fr"]) == [("fr", 100.0)]


def test_a_language_that_the_library_does_not_know_comes_last():
    assert detect("Where is the house?", ["ace", "en"]) == [("en", 100.0), ("ace", 0.0)]
