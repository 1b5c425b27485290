"""Names on the hub, from an endpoint of our own, and folders that are loaded as they are."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import transduct
from tests.interop import published
from tests.refusals import refusal
from transduct.interop import hub
from transduct.interop.convert import convert

COMMIT = "0123456789012345678901234567890123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "opus"
    published.folder(path)
    return path


class Hub(BaseHTTPRequestHandler):
    """A hub with one model, tiny/opus."""

    folder = None

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/tiny/opus"):
            names = sorted(os.listdir(self.folder))
            files = [{"rfilename": name} for name in names]
            said = {"id": "tiny/opus", "modelId": "tiny/opus", "sha": COMMIT, "siblings": files}
            tree = [
                {
                    "type": "file", "path": name, "oid": "0" * 40,
                    "size": (self.folder / name).stat().st_size,
                }
                for name in names
            ]  # fmt: skip
            return self.answer(json.dumps(tree if "/tree/" in path else said).encode(), {})
        if path.startswith("/tiny/opus/resolve/"):
            data = (self.folder / path.rpartition("/")[2]).read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            return self.answer(data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def answer(self, data, headers):
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def ask(script, home, endpoint, **more):
    """Run a script with a hub of ours; in a process, because the library reads these once."""
    given = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **more}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_name_is_fetched_once_and_then_needs_no_network(folder, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = "from transduct.interop import hub; print(hub.folder('tiny/opus'))"
    home = f"http://127.0.0.1:{server.server_port}"
    try:
        first = ask(script, tmp_path, home)
        assert first.returncode == 0, first.stderr
        found = first.stdout.strip()
        assert sorted(os.listdir(found)) == sorted(
            name for name in os.listdir(folder) if not name.startswith(".")
        )
        missing = ask(script.replace("opus", "none"), tmp_path, home)
        assert "tiny/none: no model of this name on the hub; look it up" in missing.stderr
    finally:
        server.shutdown()
        server.server_close()
    again = ask(script, tmp_path, home)
    assert again.stdout.strip() == found, again.stderr
    other = ask(script, tmp_path / "empty", home)
    assert (
        "the hub cannot be reached, and the model is not in its cache; where there" in other.stderr
    )
    assert "hf download tiny/opus --local-dir opus, and give that folder" in other.stderr
    convert(found, tmp_path / "ours", None, None, None, [])
    assert (tmp_path / "ours" / "model.safetensors").exists()


def test_a_folder_of_another_tool_is_loaded_as_it_is(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = [published.PAIRS[0][0]]
    first = transduct.load(folder).translate(text)
    [made] = (tmp_path / "transduct" / "models").iterdir()
    before = made.stat().st_mtime_ns
    assert transduct.load(str(folder)).translate(text) == first
    assert made.stat().st_mtime_ns == before
    convert(str(folder), tmp_path / "ours", None, None, None, [])
    assert transduct.load(tmp_path / "ours").translate(text) == first


def test_what_is_no_name_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert hub.is_name("Helsinki-NLP/opus-mt-de-en")
    assert hub.is_name("facebook/m2m100_418M@main")
    assert not any(map(hub.is_name, ("runs/de-en", "de-en", "a/b/c", "/a/b")))
    assert not hub.is_foreign(3)
    with refusal("give the path of a run or a model directory"):
        transduct.load(3)


@pytest.mark.parametrize("name", ["a--b/c", "x/.."])
def test_a_wrong_name_is_refused(name):
    with refusal("not a name on the hub; give OWNER/MODEL"):
        hub.folder(name)
