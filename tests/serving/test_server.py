"""The server listens, rejects what it cannot serve, and shuts down gracefully."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

import transduct
from tests.interfaces.clients import Client, half_sent
from transduct.errors import TransductError
from transduct.serving import server
from transduct.serving.connections import Impatient
from transduct.serving.service import PATIENCE


@contextmanager
def program(*words, before=""):
    """`transduct serve` as a process, and a client of it."""
    script = f"{before}from transduct.interfaces.cli import main; main()"
    command = [sys.executable, "-c", script, "serve", *map(str, words)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        line = process.stderr.readline()
        yield process, Client(int(re.search(r":(\d+) ", line)[1])), line
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_was_asked_before_the_end_is_answered(trained_run, number):
    model = transduct.load(trained_run)
    texts = ["a b c d e f g h " * 15] * 12
    with program(trained_run, "--port", 0) as (process, client, line):
        assert line == f"serving {trained_run} on http://127.0.0.1:{client.port} (Ctrl-C ends)\n"
        client.post("/translate", {"texts": ["a"]})
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(client.post("/translate", {"texts": texts}))
        )
        thread.start()
        while b"transduct_waiting 0.0" in client("GET", "/metrics")[2] and thread.is_alive():
            time.sleep(0.001)
        process.send_signal(number)
        thread.join()
        assert process.wait(60) == 0
    assert [each["text"] for each in answers[0]["translations"]] == [
        each.text for each in model.translate(texts)
    ]


def test_a_hang_up_that_is_ignored_does_not_end_it(trained_run):
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    with program(trained_run, "--port", 0, before=before) as (process, client, _):
        process.send_signal(signal.SIGHUP)
        assert client.post("/translate", {"texts": []}) == {"translations": []}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("limits", "after", "most"),
    [((256, 4096), 1100, 1000), ((256, 600), 600, 500), ((256, -1), 1100, 1000)],
)
def test_there_are_files_for_all_connections_or_fewer_connections(monkeypatch, limits, after, most):
    given = []
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, pair: given.append(pair))
    monkeypatch.setattr(Impatient, "most", 1000)
    server._allow_connections()
    assert given == [(after, limits[1])]
    assert Impatient.most == most


@pytest.mark.parametrize("soft", [1100, -1])
def test_a_limit_of_files_that_is_high_enough_stays(monkeypatch, soft):
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (soft, -1))
    monkeypatch.setattr(server.resource, "setrlimit", lambda *_: 1 / 0)
    server._allow_connections()
    assert Impatient.most == 1000


def test_no_text_of_a_request_is_in_the_log(trained_run):
    texts = ["ΩΨΩ ΨΩ " * 9, "a b c d e f g h " * 30]
    with program(trained_run, "--port", 0) as (process, client, _):
        assert len(client.post("/translate", {"texts": texts})["translations"]) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_a_signal_is_heard_as_soon_as_it_serves_and_ends_who_does_not_send_all(trained_run):
    with program(trained_run, "--port", 0) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    command = "from transduct.serving import server; server.PATIENCE = -4.0; "
    with (
        program(trained_run, "--port", 0, before=command) as (process, client, _),
        half_sent(client, {"inputs": ["a"]}),
    ):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_who_connects_and_does_not_ask_is_hung_up_on(trained_run):
    command = "from transduct.serving.connections import Impatient; Impatient.patience = 0.2; "
    with (
        program(trained_run, "--port", 0, before=command) as (_, client, _),
        socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection,
    ):
        assert connection.recv(100) == b""


def test_a_second_ctrl_c_does_not_wait_and_does_not_call_it_well(trained_run):
    before = "from transduct.predictors.translation import Translator as T; import time; "
    before += "g = T.read; T.read = lambda *given: (time.sleep(3), g(*given))[1]; "
    with program(trained_run, "--port", 0, before=before) as (process, client, _):
        with half_sent(client, {"inputs": ["a"]}, 0):
            # behind what warms it
            while b"transduct_waiting 1.0" not in client("GET", "/metrics")[2]:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 1
        assert "stopped before all requests were answered" in process.stderr.read()


def test_the_server_is_given_its_model_and_its_limits(trained_run, monkeypatch):
    loaded, made = [], []
    load, config = server.load, server.uvicorn.Config
    monkeypatch.setattr(server, "load", lambda *given: (loaded.append(given), load(*given))[1])
    monkeypatch.setattr(
        server.uvicorn,
        "Config",
        lambda *given, **named: (made.append(config(*given, **named)), 1 / 0),
    )
    with pytest.raises(ZeroDivisionError):
        server.serve(str(trained_run), "127.0.0.1", 0, 9, None, "cpu", "bfloat16")
    assert loaded == [(str(trained_run), "cpu", "bfloat16")]
    assert made[0].limit_concurrency is None, "connections.py limits them"
    assert Impatient.most == 1000, "as docs/serving.md says"
    assert made[0].timeout_graceful_shutdown > PATIENCE, "what began before the end is answered"


def test_what_cannot_be_served_is_refused(trained_run, tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "words").write_text("one\ntwo words\n")
    calls = {
        "--waiting 0": "--waiting is 0, must be at least 1",
        "--port -1": "--port is -1, must be from 0 to 65535",
        "--port 70000": "--port is 70000, must be from 0 to 65535",
        "--host no.such.host.invalid": "cannot listen on no.such.host.invalid:5000 (",
        "--keys none": "none: cannot be read (",
        "--host ..": "cannot listen on ..:5000 (",
        "--keys words": "words:2: not a key; write letters and digits without blanks",
        "--keys empty": "empty: holds no key; write one a line",
        "--device gpu": "unknown device 'gpu'; known are: auto, cpu, cuda, cuda:N",
    }
    code = (
        "import sys\n"
        "from transduct.interfaces.cli import main\n"
        "model, *calls = sys.argv[1:]\n"
        "for words in calls:\n"
        "    sys.argv = ['transduct', 'serve', model, *words.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 2\n"
    )
    command = [sys.executable, "-c", code, str(trained_run), *calls]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    for line, said in zip(done.stderr.splitlines(), calls.values(), strict=True):
        assert said in line


def test_a_port_that_is_taken_is_refused():
    with server._listening("127.0.0.1", 0) as first:
        assert first.proto == socket.IPPROTO_TCP  # or each answer would be held back for 40 ms
        port = first.getsockname()[1]
        said = rf"cannot listen on 127.0.0.1:{port} \(.*\); give another --port or --host"
        with pytest.raises(TransductError, match=said):
            server._listening("127.0.0.1", port)


def test_keys_stand_one_a_line(tmp_path):
    (tmp_path / "keys").write_text("\ufeffone\n\n  two\n")
    assert server.read_keys(tmp_path / "keys") == ["one", "two"]
