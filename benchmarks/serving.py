"""A server under load: throughput and latency with many clients, and its ratios to a model alone.

    python benchmarks/serving.py MODEL TEXT [--clients 1,8,64,256] [--seconds 30] [--waiting 1000]
    [--beam 1] [--ratios] [--minutes 10] [--miniature]

Each client posts one sentence of TEXT after another, each as soon as the last is answered; after a
429 it waits as long as Retry-After says. Prints a row for each number of clients: answers and
refusals per second, median and 99th percentile latency in seconds, inputs per batch, and the
server's memory afterwards.

With --ratios each row is a ratio, of rounds that alternate: the median of the rounds, the least and
the most. Other programs on the machine change times, and hardly these ratios.

* The server's own CPU time of a sentence by that of `translate` in one process, and answers per
  second, for beams of 1 and 5 and each number of clients.
* The CPU time of one sentence with two threads by that with one.
* Sentences posted one after another beside each attack by those alone: the median, and the slowest
  hundredth. An attack comes from the same address, or from another.
* The next answer after a client left, by one alone.
* The first event of a hundred sentences, by the answer to one sentence alone.
* The server's memory after so many minutes with clients that break off, by that after one.

--miniature is for tests: all is small.
"""

import argparse
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from math import ceil
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

ROUNDS = 3  # of each ratio
JSON = {"Content-Type": "application/json"}
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
BREAKING = 8  # clients that break off


@dataclass(frozen=True)
class Attack:
    """How large the attacks are: characters of a long text, of one with a wide beam and of a
    document, half-sent connections, and sentences of a streamed text."""

    text: int = 39_000
    wide: int = 2_400
    document: int = 7_900
    connections: int = 1_020
    sentences: int = 100


MINIATURE = Attack(390, 40, 200, 30, 5)


def post(connection: http.client.HTTPConnection, text: str, beam: int) -> int:
    """Post one sentence. Returns 0 if it was answered, otherwise the seconds to wait before
    retrying."""
    body = json.dumps({"texts": [text], "beam": beam})
    connection.request("POST", "/translate", body, JSON)
    response = connection.getresponse()
    response.read()
    assert response.status in (200, 429), response.status
    return int(response.headers.get("Retry-After", 0))


def load(
    port: int, texts: list[str], clients: int, seconds: float, beam: int
) -> tuple[list[float], int]:
    """The latencies of the answers, and the number of requests turned away."""
    number, until = count(), time.perf_counter() + seconds

    def client(_: int) -> tuple[list[float], int]:
        took, refused = [], 0
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (began := time.perf_counter()) < until:
            if wait := post(connection, texts[next(number) % len(texts)], beam):
                refused += 1
                # the server would close it meanwhile; the next request reopens it
                connection.close()
                time.sleep(wait)
            else:
                if (now := time.perf_counter()) < until:  # later answers are not counted
                    took.append(now - began)
        connection.close()
        return took, refused

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(client, range(clients)))
    return [second for took, _ in found for second in took], sum(refused for _, refused in found)


def batches(port: int) -> tuple[float, float, float]:
    """The numbers of batches, of inputs in them, and of inputs that the server has answered."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    names = ("batch_size_count", "batch_size_sum", "inputs_total")
    found = [re.search(rf"^transduct_{name} (\S+)", text, re.MULTILINE) for name in names]
    return tuple(float(each[1]) for each in found)  # type: ignore[return-value,index]


def resident(process: int) -> float:
    """The resident memory of a process in MB."""
    said = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", said)[1]) / 1024  # type: ignore[index]


@contextmanager
def flooded(port: int, address: str, body: dict[str, Any], patience: float) -> Iterator[None]:
    """Posts a body again and again from an address, as soon as it is answered or, after `patience`
    seconds, given up."""
    done = threading.Event()

    def flood() -> None:
        while not done.is_set():
            connection = http.client.HTTPConnection(
                "127.0.0.1", port, timeout=patience, source_address=(address, 0)
            )
            with suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/translate", json.dumps(body), JSON)
                connection.getresponse().read()
            connection.close()

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def half_sent(port: int, address: str, connections: int) -> Iterator[None]:
    """Holds connections from an address that have sent half of a request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, connections + 200)), hard))
    with ExitStack() as held:
        for _ in range(connections):
            one = held.enter_context(socket.socket())
            one.bind((address, 0))
            one.connect(("127.0.0.1", port))
            one.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\n")
        yield


def asked_alone(port: int, texts: list[str], seconds: float, beam: int) -> tuple[list[float], int]:
    """The latencies of sentences posted one after another, each over its own connection, and how
    many were refused."""
    took, refused, until = [], 0, time.perf_counter() + seconds
    for number in count():
        if (began := time.perf_counter()) >= until:
            return took, refused
        body = json.dumps({"texts": [texts[number % len(texts)]], "beam": beam})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=70)
        try:
            connection.request("POST", "/translate", body, JSON)
            answered = connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            answered = False
        if answered:
            took.append(time.perf_counter() - began)
        else:
            refused += 1
            time.sleep(0.05)
        connection.close()
    raise AssertionError


def attack(port: int, texts: list[str], seconds: float, beam: int, size: Attack) -> None:
    """Print how much slower short requests are beside each attack, from either address."""
    prose = " ".join(texts * (1 + size.text // len(" ".join(texts))))
    bodies = {
        f"ten texts of {size.text:,} x": (["x" * size.text] * 10, beam, 70),
        f"two texts of {size.text:,}": ([prose[: size.text]] * 2, beam, 70),
        f"one text of {size.text:,} x": (["x" * size.text], beam, 70),
        f"a text of {size.wide:,}, beam 16": ([prose[: size.wide]], 16, 70),
        f"a document of {size.document:,}, beam 5": ([prose[: size.document]], 5, 70),
        "the same, given up at once": ([prose[: size.document]], 5, 0.3),
    }
    attacks: dict[str, Callable[[str], Any]] = {
        name: lambda address, given=given: flooded(
            port, address, {"texts": given[0], "beam": given[1]}, given[2]
        )
        for name, given in bodies.items()
    }
    attacks[f"{size.connections:,} half-sent"] = lambda address: half_sent(
        port, address, size.connections
    )
    for name, begin in attacks.items():
        for address, where in ((HERE, "same"), (ELSEWHERE, "other")):
            ratios: dict[float, list[float]] = {0.5: [], 0.99: []}
            for _ in range(ROUNDS):
                alone, _ = asked_alone(port, texts, seconds, beam)
                with begin(address):
                    time.sleep(min(1.0, seconds / 4))  # until it is under way
                    took, refused = asked_alone(port, texts, seconds, beam)
                if not took or refused:
                    print(f"beside {name}: {len(took)} answers, {refused} refused", flush=True)
                for share, found in ratios.items():
                    if took:
                        found.append(slowest_of(took, share) / slowest_of(alone, share))
            for share, found in ratios.items():
                what = "median" if share == 0.5 else "hundredth"
                if found:
                    print_ratio(f"{what} beside {name}, {where} address", found)


def slowest_of(took: Sequence[float], share: float) -> float:
    """The time within which this share of answers came: of few the slowest, not one slower."""
    return sorted(took)[ceil(share * len(took)) - 1]


def leaving(port: int, texts: list[str], beam: int, size: Attack) -> None:
    """Print how long the next answer takes after a client left, and the first event of a long text,
    by the answer to one sentence alone."""
    document = " ".join(texts * (1 + size.document // len(" ".join(texts))))[: size.document]
    many = "\n".join((texts * (1 + size.sentences // len(texts)))[: size.sentences])
    after, first = [], []
    for number in range(4 * ROUNDS):
        text = texts[number % len(texts)]
        alone = first_line(port, {"texts": [text], "beam": beam})
        with suppress(TimeoutError):
            first_line(port, {"texts": [document], "beam": 5}, 0.3)
        after.append(first_line(port, {"texts": [text], "beam": beam}) / alone)
        streamed = {"texts": [many], "beam": beam, "stream": True}
        first.append(first_line(port, streamed) / alone)
    print_ratio("next answer after a client left, by alone", after)
    print_ratio(f"first event of {size.sentences} sentences by one sentence alone", first)


def first_line(port: int, body: dict[str, Any], patience: float = 70.0) -> float:
    """The seconds until the first line of the answer to a request has come."""
    began = time.perf_counter()
    with closing(http.client.HTTPConnection(HERE, port, timeout=patience)) as connection:
        connection.request("POST", "/v1/translate", json.dumps(body), JSON)
        assert connection.getresponse().readline()
        return time.perf_counter() - began


def breaking(process: int, port: int, texts: list[str], minutes: float) -> None:
    """Print the server's memory after some minutes with clients that break off, by after one."""
    done, sizes = threading.Event(), []

    def client(seed: int) -> None:
        draws = Random(seed)
        while not done.is_set():
            body = {"texts": draws.choices(texts, k=draws.randrange(1, 20)), "beam": 5}
            with suppress(OSError, AssertionError, http.client.HTTPException):
                first_line(port, body, draws.uniform(0.001, 0.2))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(BREAKING)]
    for thread in threads:
        thread.start()
    for wait in (min(minutes / 2, 1.0), max(minutes / 2, minutes - 1.0)):
        time.sleep(60 * wait)
        sizes.append(resident(process))
    done.set()
    for thread in threads:
        thread.join()
    print_ratio(
        f"memory after {minutes:g} minutes of clients that break off", [sizes[1] / sizes[0]]
    )


def cpu_seconds(process: int) -> float:
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def print_ratio(name: str, ratios: list[float]) -> None:
    """Print the median of some rounds, the least and the most."""
    least, most = min(ratios), max(ratios)
    print(f"{name:60} {median(ratios):5.2f}  ({least:.2f} to {most:.2f})", flush=True)


def compare(
    process: int, port: int, path: str, texts: list[str], clients: list[int], seconds: float
) -> None:
    """Print how much CPU time the server needs for a sentence beside `translate` on many."""
    import torch

    import transduct

    model = transduct.load(path, "cpu")
    model.translate(texts[:8], beam=1)  # what is prepared once
    for beam in (1, 5):
        for number in clients:
            costs, answers = [], []
            for _ in range(ROUNDS):
                began, used, times = time.perf_counter(), time.process_time(), 0
                while not times or time.perf_counter() - began < seconds / 2:
                    model.translate(texts, beam=beam)
                    times += len(texts)
                offline = (time.process_time() - used) / times
                speed = times / (time.perf_counter() - began)
                used, before = cpu_seconds(process), batches(port)[2]
                took, _ = load(port, texts, number, seconds, beam)
                spent = max(cpu_seconds(process) - used, 1e-9)
                if took:  # what is answered after the time costs too
                    costs.append(offline * (batches(port)[2] - before) / spent)
                    answers.append(len(took) / seconds / speed)
            if costs:
                about = f"{number} clients, beam {beam}"
                print_ratio(f"CPU of a sentence, offline by server, {about}", costs)
                print_ratio(f"answers a second, server by offline, {about}", answers)
    threads, ratios = torch.get_num_threads(), list[float]()
    for _ in range(ROUNDS):
        both = []
        for number in (2, 1):
            torch.set_num_threads(number)
            used = time.process_time()
            for text in texts[:50]:
                model.translate([text], beam=1)
            both.append(time.process_time() - used)
        ratios.append(both[0] / both[1])
    torch.set_num_threads(threads)
    print_ratio("CPU of one sentence, two threads by one", ratios)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a server, load it and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--clients", default="1,8,64,256")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--waiting", default="1000")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--ratios", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--miniature", action="store_true")
    given = parser.parse_args(arguments)
    texts = [line for line in given.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    program = [sys.executable, "-c", "from transduct.interfaces.cli import main; main()"]
    words = ["serve", given.model, "--port", "0", "--waiting", given.waiting]
    clients = [1, 2] if given.miniature else list(map(int, given.clients.split(",")))
    seconds = 0.5 if given.miniature else given.seconds
    with subprocess.Popen([*program, *words], stderr=subprocess.PIPE, text=True) as server:
        try:
            with begun(server, texts[0], given.beam) as port:
                if given.ratios:
                    size = MINIATURE if given.miniature else Attack()
                    compare(server.pid, port, given.model, texts, clients, seconds)
                    attack(port, texts, seconds, given.beam, size)
                    leaving(port, texts, given.beam, size)
                    breaking(server.pid, port, texts, 0.02 if given.miniature else given.minutes)
                else:
                    measure(server, port, texts, clients, seconds, given.beam)
        finally:
            server.terminate()


@contextmanager
def begun(server: subprocess.Popen[str], text: str, beam: int) -> Iterator[int]:
    """The port of a starting server, once it has answered; what it says is read meanwhile."""
    assert server.stderr is not None
    lines = iter(server.stderr.readline, "")
    port = next(int(found[1]) for line in lines if (found := re.search(r":(\d+) \(", line)))
    reader = threading.Thread(target=server.stderr.read, daemon=True)
    reader.start()
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        post(connection, text, beam)
    try:
        yield port
    finally:
        server.terminate()
        reader.join()


def measure(
    server: subprocess.Popen[str],
    port: int,
    texts: list[str],
    clients: list[int],
    seconds: float,
    beam: int,
) -> None:
    """Load a server, and print a row for each number of clients."""
    for number in clients:
        before = batches(port)
        took, refused = load(port, texts, number, seconds, beam)
        slices, inputs, _ = (
            after - earlier for after, earlier in zip(batches(port), before, strict=True)
        )
        if len(took) < 2 or not slices:
            print(f"{number:4} clients  fewer than two answers in {seconds:.0f} s", flush=True)
            continue
        hundredths = quantiles(took, n=100)
        print(
            f"{number:4} clients  {len(took) / seconds:7.1f} answers/s  "
            f"{refused / seconds:6.1f} refused/s  "
            f"median {hundredths[49]:.3f} s  slowest hundredth {hundredths[98]:.3f} s  "
            f"{inputs / slices:5.1f} a batch  {resident(server.pid):,.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
