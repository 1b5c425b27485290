"""The page for somebody who translates, in a real browser."""

import asyncio
import base64
import contextlib
import io
import json
import shlex
import threading

import pytest
from selenium.webdriver.common.action_chains import ActionChains

from tests.interfaces.clients import served_of, service_of_all, serving
from tests.serving.web.browser import Reader, visited
from transduct.serving.hosted import Hosted
from transduct.serving.keys import Key, Keys

TEXT = "a b c d.\ne f g h"
CONTROLS = {"button", "tab", "textbox", "combobox", "checkbox", "link", "radio", "slider"}
SLOW = pytest.mark.slow
WAYS = [  # each language, width and scheme is in every run
    ("en", 1280, False),
    ("ko", 390, True),
    pytest.param("ko", 1280, False, marks=SLOW),
    pytest.param("en", 390, True, marks=SLOW),
]


def translated(reader, text=TEXT, fragment="#en/de", **rest):
    """The page once it has translated a text."""
    reader.open(fragment, **rest)
    reader["textarea"].send_keys(text)
    done(reader)
    return reader


def done(reader):
    """Wait until nothing is on its way any more."""
    reader.until(
        lambda: reader.run(
            """return !document.querySelector("[aria-busy=true], .stale, .stop")
                 && document.querySelector(".output").textContent.trim()"""
        )
    )


@pytest.fixture
def gate(page_service, monkeypatch):
    """Translations wait for it after their first word."""
    gate, translate = threading.Event(), page_service.translate

    async def slow(call, wanted, follow=None):
        if follow:
            follow("first")
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return await translate(call, wanted)

    monkeypatch.setattr(page_service, "translate", slow)
    yield gate
    gate.set()


@pytest.mark.parametrize(("language", "width", "dark"), WAYS)
def test_every_state_is_usable_by_all(reader, language, width, dark):
    reader.open(language=language, width=width, dark=dark)
    assert reader.run("return document.documentElement.lang") == language
    reader.check()
    translated(reader, fragment="", language=language, width=width, dark=dark)
    source, target = (each.rect for each in reader.all(".pane"))
    assert (target["y"] > source["y"] + 100) == (width < 600)  # below it on a phone
    reader.run("document.querySelector('.below input').click()")
    reader.check()
    reader.wait(".word").click()
    reader.wait("[role=option]")
    reader.check()
    reader.press("ESCAPE")
    for name in ("others", "inside", "request"):
        reader.run("document.querySelector(arguments[0]).click()", f"[data-opens={name}]")
        reader.until(lambda: not reader.all(".card[aria-busy=true]"))
        reader.check()
    reader.run("document.querySelector('#tab-files').click()")
    reader.wait(".drop")
    reader.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "height", "dark"),
    [("text", 1100, 570, False), ("inside", 1100, 900, False), ("phone", 390, 844, True)],
)
def test_pictures(reader, name, width, height, dark):
    text = "three hundred five\ntwelve thousand six hundred forty"
    translated(reader, text, fragment="", width=width, dark=dark, height=height)
    reader.run("document.querySelector('.below input').click()")
    reader.all(".word")[-1].click()
    reader.wait("[role=option]")
    if name == "inside":
        reader.press("ESCAPE")
        reader["[data-opens=inside]"].click()
        reader.wait(".inside-views .strip")
        reader.wait(".inside-views details.figures")
        reader.run("document.querySelector('.inside').scrollIntoView()")
    reader.picture(name)


def test_zoom_forced_colours_paper_and_readers_of_the_screen(reader):
    translated(reader)
    named = {(role, name) for role, name in reader.tree() if name}
    assert {
        ("heading", "transduct"),
        ("tab", "Text"),
        ("tab", "Files"),
        ("textbox", "Text"),
        ("combobox", "Language of the text"),
        ("combobox", "Language of the translation"),
        ("button", "Swap languages"),
        ("button", "Copy"),
        ("button", "Look inside"),
    } <= named
    assert not [role for role, name in reader.tree() if role in CONTROLS and not name]
    cdp = reader.driver.execute_cdp_cmd
    size = {"width": 320, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    cdp("Emulation.setDeviceMetricsOverride", size)
    reader.check()
    features = [{"name": "forced-colors", "value": "active"}]
    cdp("Emulation.setEmulatedMedia", {"features": features})
    reader.check()
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    cdp("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    shown = """return [...document.querySelectorAll(
      "header, footer, .choices, .foot, .page button, textarea, .output")]
      .filter(one => one.checkVisibility()).map(one => one.className || one.localName)"""
    assert reader.run(shown) == [
        "textarea",
        reader.run("return arguments[0].className", reader[".output"]),
    ]
    ink = """const {color, backgroundColor} = getComputedStyle(document.body);
      return [color, backgroundColor]"""
    assert reader.run(ink) == ["rgb(22, 32, 43)", "rgba(0, 0, 0, 0)"]  # dark on paper
    assert base64.b64decode(cdp("Page.printToPDF", {})["data"]).startswith(b"%PDF")
    cdp("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.parametrize("local", [True, False])
def test_only_voices_of_the_device_speak(reader, local):
    voices = "speechSynthesis.getVoices = () => [{lang: 'de-DE', localService: %s}]"
    given = {"source": voices % str(local).lower()}
    cdp = reader.driver.execute_cdp_cmd
    added = cdp("Page.addScriptToEvaluateOnNewDocument", given)
    translated(reader)
    cdp("Page.removeScriptToEvaluateOnNewDocument", added)
    assert bool(reader.all("[aria-label=Speak]")) == local


def test_a_server_that_is_warming_is_met_without_an_error(driver, page_model, monkeypatch):
    """The page says so, translates, and takes the notice away by itself."""
    gate, warm = threading.Event(), Hosted._warm

    async def late(hosted):
        while not gate.is_set():
            await asyncio.sleep(0.01)
        await warm(hosted)

    monkeypatch.setattr(Hosted, "_warm", late)
    with serving(service_of_all([served_of(page_model, "slow", ("en", "de"))])) as client:
        reader = Reader(driver, client.port).open("#en/de/a b")
        reader.wait("main > [role=status]", "getting ready")
        assert client("GET", "/ready")[0] == 503
        reader["textarea"].send_keys(" c")
        done(reader)
        reader.check()
        gate.set()
        reader.until(lambda: not reader["main > [role=status]"].text)
        assert client("GET", "/ready")[0] == 200
        assert reader["textarea"].get_attribute("value") == "a b c"
        reader.quiet()


def test_the_languages_used_last_come_first(driver, page_model):
    targets = ["de", "fr", "es", "it", "ko", "ja", "nl"]
    every = [served_of(page_model, f"into {code}", ("en", code)) for code in targets]
    with visited(driver, service_of_all(every), "#en/nl") as (reader, _):
        menu = "select[aria-label='Language of the translation']"
        choose = """const menu = document.querySelector(arguments[0]); menu.value = "ja";
          menu.dispatchEvent(new Event("change", {bubbles: true}))"""
        reader.run(choose, menu)
        first = f"return document.querySelector(`{menu} optgroup`).textContent"
        reader.until(lambda: reader.run(first) == "JapaneseDutch")
        assert reader.driver.current_url.endswith("#en/ja")
        reader.check()


def test_the_page_says_everything_in_both_languages(reader):
    reader.open()
    wrong = """const values = text => String(text?.match(/\\{\\w+\\}/g)?.sort());
      return import(arguments[0]).then(({WORDS}) => Object.entries(WORDS).filter(
        ([, [en, ko, more]]) => !en || !ko || more || values(en) !== values(ko)))"""
    assert [reader.run(wrong, f"./web/{each}words.js") for each in ("", "inside/")] == [[], []]
    reader["header .quiet"].click()
    reader.wait("[role=tab]", "텍스트")
    assert reader.run("return document.documentElement.lang") == "ko"


def test_a_translation_is_the_server_s_in_all_that_is_shown_of_it(reader, page_server):
    """One visit: text, news, sentences, what is asked again, unlikely words, other translations."""

    def asked(text, **more):
        body = {"texts": text.split("\n"), "from": "en", "to": "de", **more}
        return page_server.post("/v1/translate", body)["translations"]

    translated(reader)
    expected = [each["text"] for each in asked(TEXT)]
    assert reader["textarea"].get_attribute("value") == TEXT  # Enter sends nothing
    shown = "return document.querySelector('.output').innerText"
    assert reader.run(shown) == "\n".join(expected)
    news = reader.run("return document.querySelector('.page > .for-readers').textContent")
    assert news == " ".join(expected)  # once
    assert reader.run("return document.querySelector('.output').lang") == "de"
    lit = "return [...document.querySelectorAll('.lit')].map(one => one.textContent)"
    second = reader.all(".sentence")[1]
    ActionChains(reader.driver).move_to_element(second).perform()
    reader.until(lambda: reader.run(lit) == ["e f g h", second.text])
    area = reader["textarea"]
    left, top = -area.size["width"] // 2 + 30, -area.size["height"] // 2 + 30
    ActionChains(reader.driver).move_to_element_with_offset(area, left, top).perform()
    reader.until(lambda: reader.run(lit) == ["a b c d.", reader.all(".sentence")[0].text])
    assert reader.translations() == TEXT.split("\n")
    area.send_keys(" i")
    done(reader)
    reader.until(lambda: reader.translations() == ["e f g h i"])
    reader.press("BACKSPACE", "BACKSPACE")
    reader.until(lambda: area.get_attribute("value") == TEXT)
    done(reader)
    assert reader.translations() == []
    assert reader.all(".unlikely") == []
    reader[".below input"].click()
    tokens = [token for each in asked(TEXT, log_probabilities=True) for token in each["tokens"]]
    unlikely = [each["text"] for each in tokens if each["log_probability"] < -0.6931]
    assert [each.text for each in reader.all(".unlikely")] == unlikely
    ActionChains(reader.driver).move_to_element_with_offset(area, left, top).click().perform()
    reader["[data-opens=others]"].click()
    reader.wait(".others li")
    [found] = asked(TEXT.split("\n")[0], beam=5, n_best=5)  # of the sentence at the caret
    others = reader.all(".others button")
    assert [each.text for each in others] == [each["text"] for each in found["alternatives"]]
    others[2].click()
    reader.wait(".output", found["alternatives"][2]["text"])


def test_the_request_that_is_shown_gives_the_same_answer(reader, page_server):
    translated(reader, "a b 'c' d.\ne f")
    shown = reader.run("return document.querySelector('.output').innerText")
    reader["[data-opens=request]"].click()
    for tab, part in {"python": "import json", "libre": '"q"', "curl": '"texts"'}.items():
        reader[f"#tab-{tab}"].click()
        reader.wait("#code", part)
        code = reader["#code"].text
        if tab == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, {})
            assert printed.getvalue() == f"{shown}\n"
            continue
        words = shlex.split(code.replace("\\\n", " "))
        found = page_server.post("/" + words[1].split("/", 3)[3], json.loads(words[-1]))
        texts = found.get("translatedText") or [each["text"] for each in found["translations"]]
        assert "\n".join(texts) == shown


def test_a_translation_is_streamed_and_stops_when_it_shall(reader, gate):
    reader.open("#en/de")
    reader["textarea"].send_keys("a b c")
    reader.wait(".output", "first")
    reader.wait(".stop").click()
    reader.until(lambda: not reader.all(".stop"))
    reader["textarea"].send_keys(" d")
    reader.wait(".stop")
    gate.set()
    done(reader)
    assert "first" not in reader.run("return document.querySelector('.output').textContent")


def test_what_is_typed_meanwhile_gives_up_what_was_asked(reader, gate):
    reader.open("#en/de")
    reader["textarea"].send_keys("a b c")
    reader.wait(".output", "first")
    reader.press(" d e")
    reader.until(lambda: "a b c d e" in reader.translations())
    gate.set()
    done(reader)
    pieces = "return [...document.querySelectorAll('.output .sentence')].length"
    assert reader.run(pieces) == 1


def test_by_keys_alone_another_word_is_chosen_and_taken_back(reader, page_server):
    reader.open("#en/de")
    reader.tab_to("textarea")
    reader.press("a b c d")
    done(reader)
    shown = "return document.querySelector('.output').innerText"
    before = reader.run(shown)
    reader.tab_to(".word")
    reader.press("ARROW_RIGHT")
    place = int(reader.run("return document.activeElement.dataset.at"))
    reader.press("ENTER")
    reader.wait("[role=option]")
    body = {"text": "a b c d", "target": before, "place": place, "from": "en"}
    found = page_server.post("/v1/alternatives", {**body, "target_language": "de"})["alternatives"]
    options = [each.text.replace("✓ ", "").split("\n") for each in reader.all("[role=option]")]
    assert len(options) <= 8
    assert [each[0] for each in options] == [each["text"][place:].split()[0] for each in found]
    assert [each[1] for each in options] == [f"{100 * each['probability']:.1f} %" for each in found]
    other = next(n for n, each in enumerate(found) if each["text"] != before)
    reader.press(*["ARROW_DOWN"] * other, "ENTER")
    done(reader)
    reader.until(lambda: reader.run(shown) == found[other]["text"])
    assert reader.run("return document.activeElement.dataset.at") == str(place)
    reader.press("ESCAPE")
    reader.until(lambda: reader.run(shown) == before)


@pytest.mark.parametrize("typed", ["", "\ne f"], ids=["nothing", "a line"])
def test_a_choice_is_shown_whole_whatever_is_typed_meanwhile(reader, gate, page_server, typed):
    gate.set()
    translated(reader, "a b c d", fragment="#en/de")
    before = reader.run("return document.querySelector('.output').innerText")
    reader.tab_to(".word")
    reader.press("ENTER")
    reader.wait("[role=option]")
    words = [each.text.replace("✓ ", "").split("\n")[0] for each in reader.all("[role=option]")]
    gate.clear()
    reader.press("ARROW_DOWN", "ENTER")
    reader.wait(".output", "first")
    reader["textarea"].send_keys(typed)
    asked = list[str]()
    reader.until(lambda: asked.extend(reader.translations()) or typed.strip() in ["", *asked])
    gate.set()
    done(reader)
    body = {"texts": ["a b c d"], "prefixes": words[1:2], "from": "en", "to": "de"}
    [expected] = page_server.post("/v1/translate", body)["translations"]
    assert expected["text"] != before
    reader.until(lambda: reader.all(".output .sentence")[0].text == expected["text"])
    assert asked == ["a b c d", "a b c d", *typed.split("\n")[1:]]


def test_languages_are_swapped_detected_and_in_the_address(reader):
    translated(reader, "a b c", fragment="#en/de")
    shown = reader.run("return document.querySelector('.output').innerText")
    reader["[aria-label='Swap languages']"].click()
    reader.until(lambda: reader["textarea"].get_attribute("value") == shown)
    assert reader.driver.current_url.endswith("#de/en")
    done(reader)
    reader.open("#auto/en")
    reader["textarea"].send_keys("Ich habe Hunger und gehe nach Hause")
    label = "return document.querySelector('option[value=auto]').textContent"
    reader.until(lambda: reader.run(label) == "Detected: German")
    reader.until(lambda: ("/v1/translate", "de") in sent_from(reader))
    reader.open("#de/en/a%20b")
    assert reader.wait("textarea").get_attribute("value") == "a b"
    done(reader)


def test_the_text_is_copied_linked_and_cleared(reader):
    translated(reader, "a b c")
    shown = reader.run("return document.querySelector('.output').innerText")
    reader.run(
        "window.copied = []; navigator.clipboard.writeText = async one => {copied.push(one)}"
    )
    reader["[aria-label=Copy]"].click()
    reader.wait("[role=status]", "Copied")
    reader["[aria-label='Copy link with this text']"].click()
    reader.until(lambda: len(reader.run("return copied")) == 2)
    assert reader.run("return copied") == [shown, f"{reader.driver.current_url}/a%20b%20c"]
    reader["[aria-label='Clear text']"].click()
    reader.until(lambda: not reader.run("return document.querySelector('.output').textContent"))
    assert (
        reader.run("const at = document.activeElement; return at.localName + at.value")
        == "textarea"
    )


def sent_from(reader):
    reader.quiet()
    return [(path, (body or {}).get("from")) for path, body in reader.sent]


def test_text_and_choices_survive_a_reload_unless_they_shall_not(reader):
    translated(reader, "a b c", fragment="#de/en")
    reader.open(forget=False)
    assert reader.wait("textarea").get_attribute("value") == "a b c"
    done(reader)
    assert reader.driver.current_url.endswith("#de/en")
    reader["footer input"].click()
    reader.open(forget=False)
    assert reader.wait("textarea").get_attribute("value") == ""
    assert "a b c" not in reader.run("return JSON.stringify({...localStorage, ...sessionStorage})")


def test_a_server_that_ends_or_is_away_is_asked_again(reader, page_service, monkeypatch):
    reader.expected = ["status of 503", "ERR_INTERNET_DISCONNECTED"]
    reader.open("#en/de")
    monkeypatch.setattr(page_service, "ending", True)
    reader["textarea"].send_keys("a b c")
    reader.wait(".translation .alert", "starting or ending")
    reader.check()
    monkeypatch.setattr(page_service, "ending", False)
    done(reader)
    assert not reader.all(".translation .alert")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    reader.driver.execute_cdp_cmd("Network.enable", {})
    reader.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": True})
    reader["textarea"].send_keys(" d")
    reader.wait(".translation .alert", "does not answer")
    reader.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": False})
    reader.until(lambda: not reader.all(".translation .alert"))
    done(reader)


def test_a_key_is_asked_for_and_used(reader, page_service, monkeypatch):
    keys = Keys.__new__(Keys)
    keys.keys = [Key("secret", "secret")]
    monkeypatch.setattr(page_service, "keys", keys)
    reader.expected = ["status of 401"]
    reader.open("#en/de")
    reader["textarea"].send_keys("a b c")
    reader.wait(".key .alert", "asks for a key")
    reader.check()
    reader.wait(".translation .alert", "asks for a key")
    reader.press("wrong", "ENTER")
    reader.wait(".key .alert", "does not know this key")
    reader.until(lambda: reader.run("return document.activeElement.type === 'password'"))
    reader.press("secret", "ENTER")
    done(reader)
    assert not reader.all(".alert")


def test_what_the_server_refuses_is_said_beside_the_text(reader, page_service):
    reader.expected = ["status of 413"]
    reader.open("#en/de")
    reader.run(
        """const area = document.querySelector("textarea"); area.value = "a b ".repeat(12000);
        area.dispatchEvent(new Event("input", {bubbles: true}))"""
    )
    reader.wait(".output .alert", "at most 40,000 are taken")


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])
def test_files_come_back_translated(reader, page_server, tmp_path, width):
    (tmp_path / "letter.txt").write_text("a b c\n\n  d e f\n")
    (tmp_path / "letter.exe").write_text("a b c")
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path / "saved")}
    reader.driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    reader.expected = ["status of 400"]
    reader.open("#en/de", width=width)
    reader.tab_to("#tab-text")
    reader.press("ARROW_RIGHT")
    reader.run("document.querySelector('input[type=file]').hidden = false")
    reader["input[type=file]"].send_keys(f"{tmp_path}/letter.txt\n{tmp_path}/letter.exe")
    reader.run("document.querySelector('input[type=file]').hidden = true")
    reader.wait(".job .alert", "unknown kind")
    link = reader.wait(".job a", "Save letter.de.txt")
    reader.check()
    link.click()
    saved = tmp_path / "saved/letter.de.txt"
    reader.until(saved.exists)
    texts = ["a b c", "d e f"]
    body = {"texts": texts, "from": "en", "to": "de"}
    found = [each["text"] for each in page_server.post("/v1/translate", body)["translations"]]
    reader.until(lambda: saved.read_text() == f"{found[0]}\n\n  {found[1]}\n")
    for button in reader.all(".job button"):
        button.click()
    assert reader.all(".job") == []


@pytest.mark.parametrize("kinds", [("dragover", "drop"), ("paste",)], ids=" ".join)
def test_files_that_are_dropped_or_pasted_on_the_text_are_translated(reader, kinds):
    reader.open("#en/de")
    reader.run(
        """const data = new DataTransfer(); data.items.add(new File(["a b c"], "dropped.txt"));
        const given = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};
        for (const kind of arguments)
          document.querySelector("textarea").dispatchEvent(
            kind === "paste" ? new ClipboardEvent(kind, given) : new DragEvent(kind, given))""",
        *kinds,
    )
    reader.wait(".job a", "Save dropped.de.txt")
