"""The inside of a sentence in a real browser: every view shows what the Python API computes."""

import re
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.interfaces.clients import service_of
from tests.predictors.test_language_modeling import make as language_model
from tests.predictors.test_text_classification import make as classifier
from tests.predictors.test_translation import make as translator
from tests.serving.web.browser import Reader, ink, visited
from transduct.interfaces.inspect import inspect
from transduct.predictors.inside import pieces, shown

TEXT = "a b c d e"
VIEWS = ("attention", "next", "beam", "positions", "model")
FATES = {
    "kept": "kept",
    "ended": "ended",
    "outranked": "dropped: score",
    "late": "dropped: end not among the best",
}
MINUS = str.maketrans("−", "-")


def opened(reader, **how):
    """The page with the inside of one sentence."""
    reader.open("#en/de", **how)
    reader["textarea"].send_keys(TEXT)
    reader.wait("[data-opens=inside]").click()
    reader.wait(".inside-views .strip")
    return reader


def view(reader, name):
    reader.run("document.getElementById(`inside-tab-${arguments[0]}`).click()", name)
    reader.wait(f".view-{name} details.figures")


def press(reader, label, within=".inside-views"):
    """Press the button of a label."""
    js = """const found = [...document.querySelectorAll(`${arguments[1]} button`)].find(
      one => (one.getAttribute('aria-label') ?? one.textContent).trim() === arguments[0]);
      found?.click(); return Boolean(found)"""
    reader.until(lambda: reader.run(js, str(label), within), f"{within} {label}")


def table(reader):
    """The rows of the numbers as a table, once all are there: name and cells."""
    reader.wait("details.figures")
    reader.run("document.querySelector('details.figures').open = true")
    reader.wait("details.figures tbody td")
    rows = """return [...document.querySelectorAll('details.figures tbody tr')]
      .map(each => [...each.cells].map(one => one.textContent))"""
    return reader.run(rows)


def number(text):
    return float(text.translate(MINUS))


SLOW = pytest.mark.slow
# Each takes ten seconds or more; the two that differ in all three are in every run.
WAYS = [
    pytest.param(*way, marks=() if way in (("en", 1280, False), ("ko", 390, True)) else SLOW)
    for way in product(["en", "ko"], [1280, 390], [False, True])
]


@pytest.mark.parametrize(("language", "width", "dark"), WAYS)
def test_every_view_is_for_everyone(reader, language, width, dark):
    opened(reader, language=language, width=width, dark=dark)
    for name in VIEWS:
        view(reader, name)
        reader.check()
        assert "<0x" not in reader.run("return document.querySelector('.inside-views').textContent")
    table(reader)
    reader.check()
    reader.run("document.querySelector('.start').click()")
    for step in range(5):
        if step % 2 == (width < 600) or step == 4:  # the others at the other width
            reader.check()
        reader.run("document.querySelector('.walk .strong').click()")
    links = reader.run("return [...document.querySelectorAll('.walk a')].map(one => one.href)")
    assert all("github.com/transduct/transduct/blob/main/docs/" in link for link in links)


def test_what_is_drawn_is_what_the_tables_say(reader, page_model, page_server):
    """The squares, the sentence below the matrix, lines, positions, their heat, and parts."""
    opened(reader)
    press(reader, "pieces")
    press(reader, "head 2", ".smalls")
    table(reader)
    reader.wait("details caption", "head 2")
    weights = page_model.attention(TEXT)[page_model.attention_names[-1]].numpy()
    for head, square in enumerate(reader.all(".smalls canvas")[:-1]):
        drawn = weights[head] / weights[head].max()
        reader.until(lambda s=square, d=drawn: np.allclose(ink(reader, s, *d.shape), d, atol=0.01))
    said = float(re.findall(r"weight of (\S+)", reader.wait(".large output").text)[-1])
    assert said == pytest.approx(weights[1, 0].max(), abs=6e-4)
    most = (
        "return [...document.querySelectorAll('.lines small')].map(one => one.textContent.trim())"
    )
    expected = weights[:, 0].max(0)
    np.testing.assert_allclose([float(each or 0) for each in reader.run(most)], expected, atol=6e-3)
    view(reader, "positions")
    wanted = shown(page_model, "positions", TEXT)
    rows = [[number(cell) for cell in row] for row in table(reader)]
    np.testing.assert_allclose(rows, [*zip(wanted["distances"], *wanted["lines"])], atol=6e-4)
    heat = """const [canvas, {shape: [rows, columns], scale, data}] = arguments;
      const {width, height} = canvas, ratio = [width / columns, height / rows];
      const copy = new OffscreenCanvas(width, height), options = {willReadFrequently: true};
      const context = copy.getContext("2d", options);
      context.drawImage(canvas, 0, 0);
      const colour = d3.scaleDiverging([-scale, 0, scale], d3.interpolatePuOr);
      return import("./web/inside/numbers.js").then(({unpacked}) => Math.max(
        ...[...unpacked({scale, data})].map((value, n) => {
          const at = [(n % columns + .5) * ratio[0], (Math.floor(n / columns) + .5) * ratio[1]];
          const {r, g, b} = d3.rgb(colour(value)), found = context.getImageData(...at, 1, 1).data;
          return Math.max(...[r, g, b].map((part, k) => Math.abs(part - found[k])));
        })))"""
    canvas = reader.wait(".view-positions canvas")
    reader.until(lambda: reader.run(heat, canvas, wanted["vectors"]) <= 2)
    view(reader, "model")
    found = [(row[0], row[1].replace("×", "x"), row[3].replace(",", "")) for row in table(reader)]
    about = page_server.post(
        "/v1/inspect", {"view": "model", "text": TEXT, "from": "en", "to": "de"}
    )
    parts = [(each["name"], each["shape"], str(each["parameters"])) for each in about["parts"]]
    assert found == parts
    total = sum(each.numel() for each in page_model.model.parameters())
    assert sum(int(count) for _, _, count in found) == total
    assert f"{total:,} parameters" in reader[".view-model .hint"].text


def test_weights_and_alignment_are_those_of_python_and_reached_by_keys(reader, page_model):
    opened(reader)
    reached_by_keys(reader)
    view(reader, "attention")
    target = page_model.translate([TEXT])[0].tokens
    press(reader, "pieces")
    for name, weights in page_model.attention(TEXT, target).items():
        side, layer, of = name.split(".")
        press(reader, of if of == "cross" else side)
        press(reader, int(layer) + 1, "[aria-label=layer]")
        for head in (len(weights) - 1, "mean"):
            label = "mean" if head == "mean" else f"head {head + 1}"
            press(reader, label, ".smalls")
            table(reader)
            reader.wait("details caption", f"layer {int(layer) + 1}, {label}")
            wanted = weights.mean(0) if head == "mean" else weights[head]

            def shows(wanted=wanted):  # once the map before has gone
                found = np.array([[number(cell) for cell in row[1:]] for row in table(reader)])
                return found.shape == wanted.shape and np.allclose(found, wanted, atol=6e-4)

            reader.until(shows, f"{name}, {label}: {wanted}")
    press(reader, "alignment")
    reader.wait(".hint", "the mean over the heads of the last layer's cross attention")
    rows, _, weights = page_model.attention(TEXT).alignment()
    found = table(reader)
    assert [row[0] for row in found] == [*rows]
    np.testing.assert_allclose([[number(c) for c in row[1:]] for row in found], weights, atol=6e-4)


def reached_by_keys(reader):
    """Tabs, steps, the matrix and the tree."""
    reader.tab_to("[role=tab]", 80)
    reader.press("ARROW_RIGHT")
    assert reader.run("return document.activeElement.id") == "inside-tab-next"
    reader.press("ARROW_LEFT")
    reader.tab_to("[role=option]", 80)
    reader.press("ARROW_DOWN")
    assert reader.run("return document.activeElement.getAttribute('aria-selected')") == "true"
    assert "2 of" in reader[".strip output"].text
    reader.tab_to("canvas")
    before = reader[".large output"].text
    reader.press("ARROW_RIGHT")
    assert reader[".large output"].text != before
    view(reader, "beam")
    reader.tab_to("[role=treeitem]", 80)
    first = reader[".told output"].text
    reader.press("ARROW_LEFT")
    assert reader[".told output"].text != first


def test_the_next_word_and_the_beam_are_the_model_s_and_another_word_may_be_chosen(
    reader, page_model
):
    opened(reader)
    view(reader, "next")
    expected = shown(page_model, "next", TEXT)
    first = expected["steps"][0]
    bars = """return [...document.querySelectorAll('.chances li')].map(
      one => [one.firstElementChild.textContent, one.querySelector('output').textContent])"""
    found = reader.run(bars)
    assert len(found) == len(first["ids"]) + 1
    for (name, share), label, log in zip(found, first["labels"], first["logs"]):
        if "special" not in label:
            assert name == label["text"]
        if not share.startswith("<"):
            assert float(share.rstrip(" %")) == pytest.approx(100 * np.exp(log), abs=0.6)
    slider = reader[".slider input"]
    for _ in range(10):
        slider.send_keys("\ue014")
    assert reader[".slider output"].text == "2.0"
    others = first["rest"][expected["temperatures"].index(2.0)]  # the logarithm of their sum
    powers = np.exp(np.array([*(log / 2 for log in first["logs"]), others]))
    percents = [float(share.strip("< %")) for _, share in reader.run(bars)]
    np.testing.assert_allclose(percents, 100 * powers / powers.sum(), atol=0.06)
    other = next(
        number for number, label in enumerate(first["labels"]) if number and "special" not in label
    )
    wanted = page_model.translate([TEXT], prefixes=[[first["ids"][other]]])[0]
    reader.run("document.querySelectorAll('.chances button')[arguments[0]].click()", other)
    reader.wait(".went-on", "goes on from the word")
    written = [each["text"] for each in pieces(page_model.target_tokenizer, wanted.tokens)]
    steps = """return [...document.querySelectorAll('.course button > span')]
      .map(one => one.textContent)"""
    reader.until(lambda: reader.run(steps)[:-1] == written)
    press(reader, "Back to the model's own text", ".went-on")
    reader.until(lambda: not reader.all(".went-on"))
    reader.wait(".view-next details.figures")
    view(reader, "beam")
    press(reader, 3, ".view-beam .choice")
    expected = shown(page_model, "beam", TEXT, beam=3)
    count = "return document.querySelectorAll('[role=treeitem]').length"
    reader.until(lambda: reader.run(count) == len(expected["nodes"]))
    best = page_model.translate([TEXT], beam=3)[0]
    assert reader.wait(".outputs .best th").text == f"★ {best.text}"
    rows = table(reader)
    assert [number(row[4]) for row in rows] == pytest.approx(
        [node["score"] for node in expected["nodes"]], abs=6e-4
    )
    assert [row[5] for row in rows] == [FATES[node["fate"]] for node in expected["nodes"]]
    assert [row[6] and number(row[6]) for row in rows] == [
        pytest.approx(node["score"] / node["divisor"], abs=6e-4) if "divisor" in node else ""
        for node in expected["nodes"]
    ]
    fates = {node["fate"] for node in expected["nodes"]}
    assert {"kept", "ended", "outranked"} <= fates
    reader.check()


@SLOW
def test_no_task_holds_typing_up_however_large_the_model_is(driver):
    """Of 100 tokens, 8 heads and 6 layers."""
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "num_heads": 8, "max_length": 260}
    text = " ".join("abcdefgh"[n % 8] for n in range(100))
    model = translator("word", **sizes)
    model.decoding = replace(model.decoding, beam=1, max_length=101)
    known, traced = {}, model.traced

    def remembered(*given, **rest):
        """Traced once: it is the browser that is measured."""
        if (key := str((given, rest))) not in known:
            known[key] = traced(*given, **rest)
        return known[key]

    model.traced = remembered
    service = service_of(model, "large", pair=("en", "de"))
    with visited(driver, service, "#en/de") as (reader, _), reader.tasks() as found:
        reader.run(
            """const area = document.querySelector("textarea"); area.value = arguments[0];
                area.dispatchEvent(new Event("input", {bubbles: true}))""",
            text,
        )
        reader.wait("[data-opens=inside]").click()
        reader.wait(".inside-views .strip")
        for name in (*VIEWS, "attention"):  # nothing is read here: that would be a task, too
            view(reader, name)
            reader.run("document.querySelector('details.figures').open = true")
            time.sleep(1)
        reader.run("document.querySelectorAll('.pages button')[1].click()")
        reader.wait(".pages output", "of 10")
        for label in ("encoder", "decoder", "cross", "pieces", "head 2", "words"):
            press(reader, label)
        for letter in " a b":
            reader["textarea"].send_keys(letter)
            time.sleep(0.3)
        time.sleep(2)
    assert len(found) > 500
    longest = [round(each, 1) for each in sorted(found)[-8:]]
    print(f"{len(found)} tasks, the longest (ms): {longest}")
    assert max(found) < 50, longest


@pytest.mark.parametrize(
    ("make", "text", "views"),
    [
        (language_model, "to be", ["attention", "next", "positions", "model"]),
        (lambda: classifier("sequence"), "a b", ["attention", "positions", "model"]),
    ],
    ids=["language model", "classifier"],
)
def test_other_models_show_their_heads(driver, make, text, views):
    model = make()
    with visited(driver, service_of(model, "other")) as (reader, _):
        reader["textarea"].send_keys(text)
        reader.wait("button[aria-expanded]", "Look inside").click()
        reader.wait(".inside-views .strip")
        tabs = "return [...document.querySelectorAll('[id^=inside-tab]')].map(one => one.id)"
        assert reader.run(tabs) == [f"inside-tab-{name}" for name in views]
        press(reader, "pieces")
        press(reader, "head 2", ".smalls")
        table(reader)
        reader.wait("details caption", "head 2")
        weights = model.attention(text)[model.model.attention_names[0]][1]
        press(reader, 1, "[aria-label=layer]")
        reader.wait("details caption", "layer 1, head 2")
        found = [[number(cell) for cell in row[1:]] for row in table(reader)]
        np.testing.assert_allclose(found, weights, atol=6e-4)
        for name in views:
            view(reader, name)
        reader.check()
        if "next" in views:
            view(reader, "next")
            reader.run("document.querySelector('.chances button:not(:disabled)').click()")
            reader.wait(".went-on", "goes on from the word")
        reader.quiet()


class OfFile(Reader):
    """Somebody who reads a file, which loads nothing."""

    def quiet(self):
        said = [each["message"] for each in self.driver.get_log("browser")]
        assert said == []
        addresses = re.findall(
            r'"url":"([a-z]+:[^"]{0,40})', str(self.driver.get_log("performance"))
        )
        assert {each.split(":")[0] for each in addresses} <= {
            "file",
            "data",
            "about",
            "blob",
            "chrome",
        }


@pytest.mark.parametrize("language", ["en", pytest.param("ko", marks=SLOW)])
def test_the_file_of_inspect_opens_without_a_network(
    driver, trained_run, page_model, tmp_path, language
):
    out = tmp_path / "page.html"
    inspect(str(trained_run), TEXT, out, {"device": "cpu", "precision": "float32"}, beam=3)
    reader = OfFile(driver, 0)
    cdp = driver.execute_cdp_cmd
    off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.get("about:blank")
    driver.get_log("performance")
    agent = driver.execute_script("return navigator.userAgent")
    cdp("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": language})
    cdp("Network.enable", {})
    cdp("Network.emulateNetworkConditions", off)
    try:
        driver.get(out.as_uri())
        for name in reversed(VIEWS):  # whose looks are those of the page of a server
            view(reader, name)
            reader.quiet()
        if language == "en":
            press(reader, "pieces")
            press(reader, "head 2", ".smalls")
            weights = page_model.attention(TEXT, beam=3)[page_model.attention_names[-1]][1]
            reader.wait("details.figures summary")
            table(reader)
            reader.wait("details caption", "head 2")
            found = [[number(cell) for cell in row[1:]] for row in table(reader)]
            np.testing.assert_allclose(found, weights, atol=6e-4)
        reader.check()
    finally:
        cdp(
            "Network.emulateNetworkConditions",
            {**off, "offline": False, "downloadThroughput": -1, "uploadThroughput": -1},
        )
        driver.get("about:blank")
