"""Subtitles keep their times and marks."""

from tests.formats.unmarked import made

SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>one</i>\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,500\r\n- two\r\n- {\\an8}three\r\n\r\n"
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n♪ 12 ♪\r\n\r\n"
    "4\r\n00:00:07,000 --> 00:00:08,000\r\nfour five\r\nsix seven"
)
VTT = (
    "WEBVTT - one\n\nNOTE one\n\nSTYLE\n::cue { color: red }\n\nintro\n"
    "00:01.000 --> 00:04.000 align:start\n<v Tom>Q &amp; A <i>two</i>\nthree\n\n"
    "00:05.000 --> 00:06.000\n나는 학교에\n간다\n"
)


def test_subtitles_keep_their_times_and_marks():
    """On as many lines, whose ends are those of the file; a speaker's line is a text of its own."""
    assert made(".srt", SRT) == (
        SRT.replace("one", "«ONE»").replace("two", "«TWO»").replace("three", "«THREE»")
        .replace("four five\r\nsix seven", "«FOUR FIVE\r\nSIX SEVEN»")
    )  # fmt: skip
    assert made(".vtt", VTT) == (
        VTT.replace("Q &amp; A", "«Q &amp; A»")
        .replace("<i>two</i>\nthree", "<i>«TWO»</i>\n«THREE»")
        .replace("나는 학교에\n간다", "«나는 학교에\n간다»")
    )  # fmt: skip


def test_a_translation_without_blanks_or_with_nothing_is_one_line():
    assert "\r\n長い文章です" in made(".srt", SRT, lambda texts: ["長い文章です"] * len(texts))
    assert made(".srt", SRT, lambda texts: [""] * len(texts)).endswith("08,000\r\n")
    assert made(".vtt", "WEBVTT\n") == "WEBVTT\n"


def test_a_translation_has_no_marks_of_its_own():
    made_of = VTT.replace("Q &amp; A", "Q")
    found = made(".vtt", made_of, lambda texts: ["5 < 6 --> 7"] * len(texts))
    assert found.count("5 &lt; 6 --&gt; 7") + found.count("5 &lt; 6\n--&gt; 7") == 4


def test_arrows_and_breaks_within_a_subtitle_are_no_times():
    content = "1\n00:00:01,000 --> 00:00:02,000\na --> b\\Nc\n\n2\n0:00:05.0 --> 0:00:06.0\nd"
    changed = content.replace("a --> b\\Nc", "«A --> B»\\N«C»").replace("\nd", "\n«D»")
    assert made(".srt", content) == changed
