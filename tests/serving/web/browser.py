"""A real browser that reads the page, and what every state of the page must hold."""

import json
import os
import time
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from websocket import create_connection

from tests.interfaces.clients import serving

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text(encoding="utf-8")
PICTURES = Path(__file__).parents[3] / "docs/gallery"
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",  # of a container it may be small
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
# Words of a running text may be small targets (WCAG 2.5.8, inline); all others are 24 px at least.
SMALL = """return [...document.querySelectorAll(
  "button, a[href], input, select, textarea, summary, [role=tab], [role=option]")]
  .filter(one => one.checkVisibility({opacityProperty: true, visibilityProperty: true}))
  .filter(one => !one.closest("[data-inline], .for-readers, svg"))
  .map(one => [one, (one.closest("label") ?? one).getBoundingClientRect()])
  .filter(([, {width, height}]) => width < least - .01 || height < least - .01)
  .map(([one, {width, height}]) => `${one.outerHTML.slice(0, 90)} ${width}x${height}`)"""


def start(folder):
    """A browser without a window, whose profile is a folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={folder}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))


@contextmanager
def visited(driver, service, *where, **how):
    """Somebody who opens the page of a service that is ready, and a client of it."""
    with serving(service) as client:
        while client("GET", "/ready")[0] != 200:
            time.sleep(0.01)
        yield Reader(driver, client.port).open(*where, **how), client


def ink(reader, canvas, rows, columns):
    """How dark each cell of a drawn matrix is, from 0 to 1."""
    alpha = """const [canvas, rows, columns] = arguments, {width, height} = canvas;
      const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
      copy.drawImage(canvas, 0, 0);
      const {data} = copy.getImageData(0, 0, width, height);
      const at = (n, cells, length) => Math.floor((n + .5) / cells * length);
      return Array.from({length: rows}, (_, r) => Array.from({length: columns}, (_, c) =>
        data[4 * (at(r, rows, height) * width + at(c, columns, width)) + 3] / 255))"""
    return reader.run(alpha, canvas, rows, columns)


class Reader:
    """Someone who uses the page.

    Attributes:
        driver: of the browser.
        expected: what the console may say, such as of an answer that the test provokes.
        sent: the path and the JSON of each request so far; see `quiet`.
    """

    def __init__(self, driver, port):
        self.driver, self.port, self.expected = driver, port, []
        self.sent = []
        driver.get("about:blank")  # what the page before had to say is no longer heard
        for log in ("browser", "performance"):
            driver.get_log(log)

    def open(self, fragment="", language="en", width=1280, dark=False, forget=True, height=None):
        """Load the page as somebody's browser would."""
        cdp = self.driver.execute_cdp_cmd
        height = height or (844 if width < 600 else 900)
        agent = self.driver.execute_script("return navigator.userAgent")
        cdp("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": language})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        cdp("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        cdp("Emulation.setDeviceMetricsOverride", size)
        cdp("Emulation.setTouchEmulationEnabled", {"enabled": width < 600})
        origin = f"http://127.0.0.1:{self.port}"
        if forget:
            cdp("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
            if self.driver.current_url != "about:blank":
                self.driver.get("about:blank")
        self.driver.get(f"{origin}/{fragment}")
        self.wait(".page > *")
        return self

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def __getitem__(self, selector):
        """The one visible element of a selector."""
        [found] = [each for each in self.all(selector) if each.is_displayed()]
        return found

    def until(self, what, because=""):
        """What becomes true within ten seconds."""
        for _ in range(500):
            if found := what():
                return found
            time.sleep(0.02)
        because = because or self.driver.find_element(By.TAG_NAME, "body").text
        raise AssertionError(f"it did not come to be: {because}")

    def wait(self, selector, text=""):
        """The first element of a selector whose text has some text, once there is one."""
        js = """return [...document.querySelectorAll(arguments[0])].find(
          one => one.checkVisibility({visibilityProperty: true}) &&
            (one.value || one.textContent).includes(arguments[1]))"""
        return self.until(
            lambda: self.driver.execute_script(js, selector, text), f"{selector} with '{text}'"
        )

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys):
        """Keys pressed where the focus is; a name such as TAB, or a text."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def tab_to(self, selector, most=60):
        """Press Tab until what has the focus matches a selector."""
        for _ in range(most):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press("TAB")
        raise AssertionError(f"Tab does not reach {selector}")

    def tree(self):
        """What a reader of the screen says of the page: the role and the name of each part."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        heard = [each for each in nodes if not each["ignored"]]
        return [(each["role"]["value"], each.get("name", {}).get("value", "")) for each in heard]

    @contextmanager
    def tasks(self):
        """Collects how long each task of the page takes meanwhile, in milliseconds of the
        processor: a busy machine does not add to them."""
        address = self.driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        with urlopen(f"http://{address}/json") as pages:
            [page] = [each for each in json.load(pages) if each["type"] == "page"]
        with closing(create_connection(page["webSocketDebuggerUrl"], suppress_origin=True)) as line:

            def ask(number, method, **given):
                line.send(json.dumps({"id": number, "method": method, "params": given}))

            categories = "disabled-by-default-devtools.timeline,__metadata"
            ask(1, "Tracing.start", categories=categories, transferMode="ReportEvents")
            while json.loads(line.recv()).get("id") != 1:
                pass
            found = list[float]()
            yield found
            ask(2, "Tracing.end")
            events, message = [], {}
            while message.get("method") != "Tracing.tracingComplete":
                message = json.loads(line.recv())
                if message.get("method") == "Tracing.dataCollected":
                    events += message["params"]["value"]
        pages = {
            (each["pid"], each["tid"])
            for each in events
            if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
        }
        found += [
            each["tdur"] / 1000
            for each in events
            if each["name"] == "RunTask" and "tdur" in each and (each["pid"], each["tid"]) in pages
        ]

    def picture(self, name):
        """A picture of the page for the documents, if they are to be made."""
        if "TRANSDUCT_PICTURES" in os.environ:
            self.driver.save_screenshot(str(PICTURES / f"serving_{name}.png"))

    def check(self):
        """What holds in every state: nothing for axe to find, no small target, no sideways
        scrolling, no message in the console, and no request to another host."""
        if not self.run("return Boolean(window.axe)"):
            self.run(AXE)
        found = self.driver.execute_async_script(
            """axe.run(document, {resultTypes: ["violations"], preload: {assets: ["media"]}})
              .then(arguments[0])"""  # without this it fetches the sheets of style, for no rule
        )
        faults = [
            (each["id"], node["html"][:200], node["failureSummary"])
            for each in found["violations"]
            for node in each["nodes"]
        ]
        assert not faults, faults
        phone = self.run("return matchMedia('(pointer: coarse)').matches")
        small = self.run(f"const least = {44 if phone else 24}; {SMALL}")
        assert not small, small
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.run(wide) <= 0
        self.quiet()

    def translations(self):
        """The texts whose translations were asked for since the last call."""
        self.quiet()
        found = [
            text for path, body in self.sent if path == "/v1/translate" for text in body["texts"]
        ]
        self.sent = []
        return found

    def quiet(self):
        """No message in the console, and no request to another host."""
        said = [each["message"] for each in self.driver.get_log("browser")]
        said = [each for each in said if not any(allowed in each for allowed in self.expected)]
        assert not said, said
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = urlsplit(message["params"]["request"]["url"])
                assert address.scheme in ("blob", "data", "about", "chrome") or (
                    address.netloc == f"127.0.0.1:{self.port}"
                ), address
                body = message["params"]["request"].get("postData", "")
                self.sent.append((address.path, json.loads(body) if body[:1] == "{" else None))
