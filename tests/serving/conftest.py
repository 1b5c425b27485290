"""A server process for clients of other programs, which asks for a key."""

import time

import pytest

from tests.interfaces.clients import program


@pytest.fixture(scope="session")
def server(trained_run, tmp_path_factory):
    """A client of it; its models translate en-de and de-ko, so en-ko through de."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret name=tests\nsmall quota=10/day\nslow rate=1/day\n")
    glossary = keys.with_name("letters.tsv")
    glossary.write_text("# letters\na\th\n")
    models = (f"en-de={trained_run}", f"de-ko={trained_run}")
    with program(*models, "--port", 0, "--keys", keys, "--glossary", f"letters={glossary}") as (
        _,
        client,
        _,
    ):
        while client("GET", "/ready")[0] != 200:
            time.sleep(0.01)
        yield client
