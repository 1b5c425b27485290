"""One browser for all tests of the page, and a server of tiny models.

Where there is no browser these tests are skipped; with TRANSDUCT_BROWSER=required they fail. The
pictures of docs/serving.md are made anew, with a model of English and Korean, by

    TRANSDUCT_PICTURES=runs/demo pytest tests/serving/web -k pictures
"""

import os
import time
from pathlib import Path

import pytest

import transduct
from tests.interfaces.clients import served_of, service_of_all, serving


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """The driver of a browser."""
    missing = [path for path in ("chromium", "chromedriver") if not Path("/usr/bin", path).exists()]
    if missing and os.environ.get("TRANSDUCT_BROWSER") != "required":
        pytest.skip(f"no {missing[0]}; install chromium and chromium-driver")
    from tests.serving.web.browser import start

    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def page_model(trained_run):
    """A tiny model that translates, or the one for pictures."""
    return transduct.load(os.environ.get("TRANSDUCT_PICTURES", trained_run))


@pytest.fixture(scope="session")
def page_service(page_model):
    """The service of that model, as one from English to German and one back."""
    if "TRANSDUCT_PICTURES" in os.environ:
        return service_of_all([served_of(page_model, "numbers", ("en", "ko"))])
    every = [
        served_of(page_model, "forth", ("en", "de")),
        served_of(page_model, "back", ("de", "en")),
    ]
    return service_of_all(every)


@pytest.fixture(scope="session")
def page_server(page_service):
    """A client of that service."""
    with serving(page_service) as client:
        while client("GET", "/ready")[0] != 200:
            time.sleep(0.01)
        yield client


@pytest.fixture
def reader(driver, page_server):
    """Somebody with a browser, whose console has said nothing at the end."""
    from tests.serving.web.browser import Reader

    reader = Reader(driver, page_server.port)
    yield reader
    reader.quiet()
