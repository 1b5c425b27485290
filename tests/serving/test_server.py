"""The server listens, rejects what it cannot serve, and shuts down gracefully."""

import functools
import json
import signal
import socket
import sys
import threading
import time

import pytest

import transduct
from tests.interfaces.clients import half_sent, program
from transduct.errors import TransductError
from transduct.interfaces import cli
from transduct.predictors.translation import Translator
from transduct.serving import served_models, server
from transduct.serving.calls import PATIENCE
from transduct.serving.connections import Impatient


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
        assert process.wait() == 0
    assert [each["text"] for each in answers[0]["translations"]] == [
        each.text for each in model.translate(texts)
    ]


def test_a_hang_up_reads_keys_and_models_again_and_loses_no_request(run, tmp_path, hangups):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    texts, answers = ["a b c d e f g h " * 15] * 12, []
    with program(run, "--port", 0, "--keys", keys) as (process, client, _):
        asks = functools.partial(client.post, "/translate", {"texts": texts})
        thread = threading.Thread(target=lambda: answers.append(asks(Authorization="Bearer one")))
        thread.start()
        while b"transduct_waiting 0.0" in client("GET", "/metrics")[2] and thread.is_alive():
            time.sleep(0.001)
        keys.write_text("two name=second\n")
        config = json.loads((run / "model" / "config.json").read_text())
        config |= {"source_language": "de", "target_language": "en"}
        (run / "model" / "config.json").write_text(json.dumps(config))
        process.send_signal(signal.SIGHUP)
        while client("GET", "/languages")[2][0]["code"] != "de":
            time.sleep(0.01)
        thread.join()
        assert len(answers[0]["translations"]) == 12
        client.refused("/translate", {"texts": ["a"]}, 401, Authorization="Bearer one")
        client.post("/translate", {"texts": ["a"]}, Authorization="Bearer two")
        keys.write_text("two three\n")
        (run / "model" / "config.json").write_text("{}")
        process.send_signal(signal.SIGHUP)
        lines = [process.stderr.readline().decode() for _ in range(2)]
        assert "the keys stay as they were: " in lines[0]
        assert "keys:1: not a key; write letters and digits" in lines[0]
        assert f"{run.name} stays as it was: " in lines[1]
        client.post("/translate", {"texts": ["a"]}, Authorization="Bearer two")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_hang_up_that_is_ignored_does_not_end_it(trained_run):
    def before():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with program(trained_run, "--port", 0, before=before) as (process, client, _):
        process.send_signal(signal.SIGHUP)
        assert client.post("/translate", {"texts": []}) == {"translations": []}
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_balancer_has_time_to_notice_that_it_ends(trained_run):
    with program(trained_run, "--port", 0, "--grace", 1) as (process, client, _):
        while client("GET", "/ready")[0] != 200:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        while (answer := client("GET", "/ready"))[0] == 200:
            time.sleep(0.01)
        assert (answer[0], answer[1]["Retry-After"], answer[2]) == (503, "1", {"status": "ending"})
        time.sleep(0.3)  # without a grace it would have closed its socket
        assert client("GET", "/live")[0] == 200
        client.post("/translate", {"texts": ["a"]})
        assert process.wait() == 0


def test_requests_are_logged_without_texts_and_keys(trained_run, tmp_path):
    (tmp_path / "keys").write_text("secret name=weblate\n")
    words = ("--port", 0, "--access-log", "--keys", tmp_path / "keys")
    with program(trained_run, *words) as (process, client, _):
        headers = {"Authorization": "Bearer secret", "X-Request-ID": "mine-1"}
        found = client("POST", "/translate", {"texts": ["a b"]}, **headers)
        assert found[1]["X-Request-ID"] == "mine-1"
        logged = process.stdout.readline().decode()
        strange = {"texts": ["ΩΨΩ ΨΩ " * 9, "a b c d e f g h " * 30]}  # which nobody warns of
        client.post("/translate", strange, **headers)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr.read() == b""
    line = json.loads(logged)
    assert (line["id"], line["path"], line["status"]) == ("mine-1", "/translate", 200)
    assert (line["key"], line["tokens_in"], line["model"]) == ("weblate", 3, "run")
    assert line["tokens_out"] > 0
    assert 0 <= line["queued"] <= line["seconds"]
    assert "secret" not in logged
    assert "a b" not in logged


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


def test_a_signal_is_heard_as_soon_as_it_serves_and_ends_who_does_not_send_all(trained_run):
    with program(trained_run, "--port", 0) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0

    def before():
        server.calls.PATIENCE = -4.0

    with (
        program(trained_run, "--port", 0, before=before) as (process, client, _),
        half_sent(client, {"inputs": ["a"]}),
    ):
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_second_ctrl_c_does_not_wait_and_does_not_call_it_well(trained_run):
    def busy(*_):
        print("busy", file=sys.stderr, flush=True)
        time.sleep(600)

    def before():
        Translator.read = busy

    with program(trained_run, "--port", 0, before=before) as (process, client, _):
        assert process.stderr.readline() == b"busy\n"
        with half_sent(client, {"inputs": ["a"]}, 0):
            # behind what warms it
            while b"transduct_waiting 1.0" not in client("GET", "/metrics")[2]:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 1
        assert b"stopped before all requests were answered" in process.stderr.read()


def test_the_server_is_given_its_model_and_its_limits(trained_run, monkeypatch):
    loaded, made = [], []
    load, config = served_models.load, server.uvicorn.Config
    monkeypatch.setattr(
        served_models, "load", lambda *given: (loaded.append(given), load(*given))[1]
    )
    monkeypatch.setattr(
        server.uvicorn,
        "Config",
        lambda *given, **named: (made.append(config(*given, **named)), 1 / 0),
    )
    with pytest.raises(ZeroDivisionError):
        server.serve([str(trained_run)], port=0, device="cpu", precision="bfloat16")
    assert loaded == [(str(trained_run), "cpu", "bfloat16")]
    assert (made[0].limit_concurrency, made[0].http) == (None, Impatient), "which limits them"
    assert Impatient.most == 1000, "as docs/serving.md says"
    assert made[0].timeout_graceful_shutdown > PATIENCE, "what began before the end is answered"


def test_what_cannot_be_served_is_refused(trained_run, tmp_path, monkeypatch, capfd):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "words").write_text("one\ntwo words\n")
    calls = {
        "--waiting 0": "--waiting is 0, must be at least 1",
        "--memory 0": "--memory is 0, must be at least 1 (MB)",
        "--grace -1": "--grace is -1, must be from 0 to 600 seconds",
        "--prefix a": "--prefix is 'a'; write a path such as /translate",
        "--allow-origin foo": "--allow-origin is 'foo'; write one such as https://example.org, ",
        "--allow-origin https://a.org/": "--allow-origin is 'https://a.org/'; write one such as ",
        "--trusted-proxy x": "--trusted-proxy is 'x'; write an address or a network, 10.0.0.0/8",
        "--port -1": "--port is -1, must be from 0 to 65535",
        "--port 70000": "--port is 70000, must be from 0 to 65535",
        "--host no.such.host.invalid": "cannot listen on no.such.host.invalid:5000 (",
        "--keys none": "none: cannot be read (",
        "--host ..": "cannot listen on ..:5000 (",
        "--keys words": "words:2: not a key; write letters and digits, then name=NAME, ",
        "--keys empty": "empty: holds no key; write one a line",
        "--device gpu": "unknown device 'gpu'; known are: auto, cpu, cuda, cuda:N",
    }
    monkeypatch.chdir(tmp_path)
    for words, said in calls.items():
        monkeypatch.setattr(sys, "argv", ["transduct", "serve", str(trained_run), *words.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capfd.readouterr()
        assert (end.value.code, out, error.count("\n")) == (2, "", 1)
        assert said in error


def test_a_port_that_is_taken_is_refused():
    with server._listening("127.0.0.1", 0) as first:
        assert first.proto == socket.IPPROTO_TCP  # or each answer would be held back for 40 ms
        port = first.getsockname()[1]
        said = rf"cannot listen on 127.0.0.1:{port} \(.*\); give another --port or --host"
        with pytest.raises(TransductError, match=said):
            server._listening("127.0.0.1", port)
