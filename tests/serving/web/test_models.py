"""The pages of models that do not translate, in a real browser."""

import io
from contextlib import ExitStack
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

import transduct
from tests.helpers import Stub
from tests.interfaces.clients import service_of
from tests.pictures import bar, png
from tests.serving.web.browser import ink, visited
from tests.tones import encoded, string
from transduct.predictors.base import Attention, Panel, Predictor


@pytest.fixture
def page_of(driver, family_of):
    """A model of a family, and somebody who opens its page."""
    with ExitStack() as opened:

        def open_page(family, **rest):
            model = transduct.load(family_of(family)[1])
            reader, client = opened.enter_context(
                visited(driver, service_of(model, family), **rest)
            )
            return model, client, reader

        yield open_page


def give(reader, path):
    """Choose a file."""
    reader.run("document.querySelector('input[type=file]').hidden = false")
    reader["input[type=file]"].send_keys(str(path))
    reader.run("document.querySelector('input[type=file]').hidden = true")


def bars(reader):
    rows = """return [...document.querySelectorAll(".bars tr")].map(row =>
      row.innerText.split(/\\s*\\t/))"""
    return {row[0]: row[-1].strip() for row in reader.run(rows)}


def percents(probabilities):
    ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[:8]
    return {label: f"{100 * p:.1f} %" for label, p in ranked}


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_a_text_gets_its_label_with_bars(page_of, width):
    model, _, reader = page_of("sequence", width=width, dark=width < 600)
    reader.tab_to("textarea")
    reader.press("( ( ) )")
    reader.wait(".answer", model.predict(["( ( ) )"])[0])
    assert bars(reader) == percents(model.probabilities(["( ( ) )"])[0])
    reader.check()


def test_a_text_gets_a_label_for_each_word(page_of):
    model, _, reader = page_of("tokens")
    reader["textarea"].send_keys("a b a")
    reader.wait(".answer", model.predict(["a b a"])[0])
    reader.check()


# Collects what an element says meanwhile.
SEEN = """window.seen = new Set(); new MutationObserver(() => {
  const one = document.querySelector("SELECTOR"); if (one) seen.add(one.textContent)})
  .observe(document.body, {subtree: true, childList: true, characterData: true});"""
# A server that writes a word at a time.
ONE_BY_ONE = """const line = text => new TextEncoder().encode(
  "data: " + JSON.stringify({choices: [{text}]}) + String.fromCharCode(10, 10));
  window.fetch = async () => new Response(new ReadableStream({async start(stream) {
    for (const text of ["one ", "two ", "three"]) {
      stream.enqueue(line(text));
      await new Promise(go => setTimeout(go, 200));
    }
    stream.close();
  }}))"""


def test_a_text_goes_on_as_it_is_written(page_of):
    _, client, reader = page_of("gpt")
    reader["textarea"].send_keys("to be ")
    reader.run(
        "const t = document.querySelector('[type=range]'); t.value = 0;"
        "t.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    reader.wait(".row .chip", "Go on").click()
    body = {"model": "gpt", "prompt": "to be ", "max_tokens": 60, "temperature": 0}
    [expected] = client.post("/v1/completions", body)["choices"]
    reader.wait(".answer", "to be " + expected["text"].rstrip())
    reader.until(lambda: not reader.all("[aria-busy=true]"))
    reader.check()
    reader.wait(".row .chip", "Keep this").click()
    reader.until(lambda: "to be " + expected["text"] == reader["textarea"].get_attribute("value"))
    reader.run(SEEN.replace("SELECTOR", ".answer") + ONE_BY_ONE)
    reader.wait(".row .chip", "Go on").click()
    reader.wait(".answer", "one two three")
    ends = [each.rpartition(expected["text"])[2] for each in reader.run("return [...seen]")]
    assert {"one ", "one two "} <= {*ends}  # it is shown as it is written


def test_a_masked_word_is_filled_in(page_of):
    model, _, reader = page_of("masked tokens")
    reader["textarea"].send_keys("to [MASK] or not")
    reader.wait(".row .chip", "Ask").click()
    reader.wait(".answer", model.predict(["to [MASK] or not"])[0])
    reader.check()


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_a_picture_gets_its_label_and_shows_where_the_model_looked(page_of, tmp_path, width):
    model, _, reader = page_of("pictures", width=width)
    path = tmp_path / "bar.png"
    path.write_bytes(png(bar("across", 3)))
    reader.check()
    give(reader, path)
    reader.wait(".answer", model.predict([path])[0])
    assert bars(reader) == percents(model.probabilities([path])[0])
    reader.wait("canvas.heat")
    reader.check()
    looked = model.attention(path)
    assert numbers(reader) == digits(looked.panels()[0].weights)
    choose(reader, 0, "encoder.0.self")
    reader.until(lambda: len(reader.all("figure select")) == 2)
    side = len(numbers(reader))
    mean = looked["encoder.0.self"].mean(0)
    mean = mean[0] if len(mean) > side**2 else mean.mean(0)
    assert numbers(reader) == digits(mean[-(side**2) :].view(side, side))
    reader.check()


def numbers(reader):
    """The table of what is shown, once all rows are there."""
    reader.run("document.querySelector('.figures').open = true")
    reader.wait(".figures tbody td")
    return reader.run(
        """return [...document.querySelectorAll(".figures tbody tr")].map(row =>
             [...row.querySelectorAll("td")].map(cell => cell.textContent))"""
    )


def digits(weights):
    return [[f"{weight:.3f}" for weight in row] for row in weights.tolist()]


def test_objects_are_found_and_each_shows_where_the_model_looked(page_of, tmp_path):
    model, _, reader = page_of("scenes")
    path = tmp_path / "bar.png"
    path.write_bytes(png(bar("across", 3)))
    give(reader, path)
    reader.run(
        "const t = document.querySelector('[type=range]'); t.value = .05;"
        "t.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    found = model.predict([path], threshold=0.05)[0]
    reader.until(lambda: len(reader.all(".found button")) == len(found) > 0)
    assert reader.all(".found button")[0].text.startswith(found[0].label)
    placed = """const {naturalWidth: w, naturalHeight: h} = document.querySelector(".over img");
      return [...document.querySelectorAll(".box")].map(({style: {left, top, width, height}}) =>
        [left, top, width, height].map((part, n) => parseFloat(part) / 100 * [w, h][n % 2]))"""
    boxes = [(a, b, c - a, d - b) for a, b, c, d in (each.box for each in found)]
    np.testing.assert_allclose(reader.run(placed), boxes, atol=1e-3)
    reader.check()
    reader.all(".found button")[0].click()
    reader.wait("canvas.heat")
    looked = model.attention(path, threshold=0.05)
    panel = looked.panels()[len(looked.panels()) // len(found) - 1]
    assert numbers(reader) == digits(panel.weights)
    choose(reader, 0, "decoder.0.cross")
    choose(reader, 1, "1")
    head = looked["decoder.0.cross"][1, panel.query].view(panel.weights.shape)
    reader.until(lambda: numbers(reader) == digits(head))
    reader.check()


def choose(reader, menu, value):
    """Choose from a menu of a drawing."""
    reader.run(
        """const menu = document.querySelectorAll("figure select")[arguments[0]];
        menu.value = arguments[1]; menu.dispatchEvent(new Event("change", {bubbles: true}))""",
        menu,
        value,
    )


def test_a_recording_gets_its_text(page_of, tmp_path):
    model, _, reader = page_of("speech")
    path, samples = tmp_path / "said.wav", string("1 2")
    path.write_bytes(encoded(samples))
    reader.check()
    give(reader, path)
    reader.wait(".answer", model.predict([path])[0] or "No speech was found.")
    reader.until(lambda: len(reader.all("canvas.sound")) == 2)
    wave, spectrum = reader.all("canvas.sound")
    parts = np.array_split(samples, 640)
    loud = np.array([np.abs(part).max() for part in parts])
    found = (np.array(ink(reader, wave, 80, 640)) > 0).sum(0)
    np.testing.assert_allclose(found, 80 * loud / loud.max(), atol=6)
    for place, pitch in ((0.27, 600), (0.73, 900)):  # in the middle of each tone

        def strongest(place=place):
            column = np.array(ink(reader, spectrum, 48, 640))[::-1, int(640 * place)]
            return np.flatnonzero(column == column.max()).mean() if column.max() else 0

        reader.until(lambda: abs(strongest() - 48 * pitch / 8000) < 1.5)  # noqa: B023
    reader.check()
    reader.wait(".row .chip", "Record").click()
    reader.wait(".row .chip", "Stop recording").click()
    reader.wait(".row .note", "recording.wav")
    reader.until(lambda: not reader.all(".stop"))
    assert reader.all(".answer, .alert")


class Heard(Stub):
    """A recogniser that hears the words "one" and "two" after a fifth and three fifths."""

    reads = "sound"
    verbs = Predictor.verbs | {"attention"}
    tokens, times = ["▁o", "ne", "▁two"], ["0.00", "0.02", "0.04", "0.06", "0.08"]

    def predict(self, inputs):
        return ["one two" for _ in inputs]

    def token_counts(self, inputs):
        return [1 for _ in inputs]

    def attention(self, given):
        weights = torch.eye(5)[[1, 2, 3]]
        panel = Panel("where each token was heard", weights, self.tokens, self.times)
        return Attention({"decoder.0.cross": weights[None]}, draw=lambda _: [panel])


def test_words_stand_below_the_place_where_they_were_heard(driver, tmp_path):
    (tmp_path / "said.wav").write_bytes(encoded(string("12")))
    with visited(driver, service_of(Heard(), "heard")) as (reader, _):
        give(reader, tmp_path / "said.wav")
        reader.wait(".heard li")
        shown = [(each.text, each.get_attribute("title")) for each in reader.all(".heard button")]
        assert shown == [("one", "0.02 s"), ("two", "0.06 s")]
        assert numbers(reader) == [["0.020"], ["0.060"]]
        reader.check()
        reader.all(".heard button")[1].click()
        reader.until(
            lambda: reader.run("return document.querySelector('audio').currentTime") >= 0.06
        )


def test_a_picture_is_rebuilt_from_its_codes(page_of, tmp_path):
    model, client, reader = page_of("image codes")
    path = tmp_path / "bar.png"
    path.write_bytes(png(bar("across", 3)))
    give(reader, path)
    reader.until(lambda: len(reader.all(".pixels")) == 2)
    sizes = "return [...document.querySelectorAll('.pixels')].map(one => one.naturalHeight)"
    reader.until(lambda: reader.run(sizes) == [8, 8])
    [grid] = [[[*map(str, row)] for row in each] for each in model.codes([path])]
    reader.wait("svg.codes")
    assert [each.text for each in reader.all("svg.codes text")] == [*chain(*grid)]
    assert numbers(reader) == grid
    address = "/v1/predict?model=image%20codes"
    made = client("POST", address, path.read_bytes(), "application/octet-stream")[2]
    halves = np.split(np.asarray(Image.open(io.BytesIO(made)).convert("RGBA")), 2)
    pixels = """const canvas = new OffscreenCanvas(8, 8);
      const context = canvas.getContext("2d", {willReadFrequently: true});
      return [...document.querySelectorAll(".pixels")].map(one => {
        context.drawImage(one, 0, 0); return [...context.getImageData(0, 0, 8, 8).data]})"""
    assert reader.run(pixels) == [half.flatten().tolist() for half in halves]
    reader.check()


def test_a_picture_is_painted_and_its_parts_show_their_words(page_of):
    model, _, reader = page_of("text to image")
    reader["textarea"].send_keys("a red circle")
    reader.run(SEEN.replace("SELECTOR", ".drawing"))
    reader.wait(".row .chip", "Paint").click()
    reader.wait(".pixels")
    reader.wait(".bars")
    assert any(each.startswith("code ") for each in reader.run("return [...seen]"))
    assert not reader.all(".drawing")
    panels = model.attention("a red circle", seed=1).panels()
    for cell in (0, 3):
        reader.run(
            "const cell = document.querySelector('[type=range]'); cell.value = arguments[0];"
            "cell.dispatchEvent(new Event('input', {bubbles: true}))",
            cell,
        )
        looked = {each.title.lstrip("▁"): float(each.weights.flatten()[cell]) for each in panels}
        wanted = {title: f"{100 * share:.1f} %" for title, share in looked.items()}
        reader.until(lambda: bars(reader) == wanted)  # noqa: B023
    reader.check()
    reader.wait(".beside .chip[aria-pressed]").click()
    reader.wait("canvas.heat")
    reader.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "text", "shown"),
    [
        ("sequence", "( ( ) )", ".bars"),
        ("tokens", "a b a", ".answer"),
        ("gpt", "to be ", ".answer"),
        ("masked tokens", "to [MASK] or not", ".answer"),
        ("text to image", "a red circle", ".bars"),
        ("pictures", None, "canvas.heat"),
        ("scenes", None, "img"),
        ("image codes", None, "svg.codes"),
        ("speech", None, ".answer"),
    ],
)
def test_each_page_is_for_everyone_in_korean_on_a_dark_phone(
    page_of, tmp_path, family, text, shown
):
    _, _, reader = page_of(family, language="ko", width=390, dark=True)
    reader.check()
    if text is None:
        path = tmp_path / ("said.wav" if family == "speech" else "bar.png")
        path.write_bytes(encoded(string("1 2")) if family == "speech" else png(bar("across", 3)))
        give(reader, path)
    else:
        reader["textarea"].send_keys(text)
        for button in reader.all(".page > .row:has(.chip):nth-child(2) .chip")[:1]:
            button.click()
    reader.wait(shown)
    reader.until(lambda: not reader.all(".stop"))
    if reader.all(".figures"):
        numbers(reader)
    reader.check()
    assert reader.run("return document.documentElement.lang") == "ko"
