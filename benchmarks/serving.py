"""A server under load: throughput and latency with one and with many concurrent clients.

    python benchmarks/serving.py MODEL TEXT [--clients 1,8,64] [--seconds 30] [--waiting 1000]
    [--beam 1]

Each client posts one sentence of TEXT after another, each as soon as the last is answered; after a
429 it waits as long as Retry-After says. Prints a row for each number of clients: answers and
refusals per second, median and 99th percentile latency in seconds, inputs per batch, and the
server's memory afterwards.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import quantiles


def post(connection: http.client.HTTPConnection, text: str, beam: int) -> int:
    """Post one sentence. Returns 0 if it was answered, otherwise the seconds to wait before
    retrying."""
    body = json.dumps({"texts": [text], "beam": beam})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
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
        return took, refused

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(client, range(clients)))
    return [second for took, _ in found for second in took], sum(refused for _, refused in found)


def batches(port: int) -> tuple[float, float]:
    """The numbers of batches and of inputs that the server has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    said = connection.getresponse().read().decode()
    found = [
        re.search(rf"^transduct_batch_size_{name} (\S+)", said, re.MULTILINE)
        for name in ("count", "sum")
    ]
    return float(found[0][1]), float(found[1][1])  # type: ignore[index]


def resident(process: int) -> float:
    """The resident memory of a process in MB."""
    said = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", said)[1]) / 1024  # type: ignore[index]


def main() -> None:
    """Start a server, load it and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--waiting", default="1000")
    parser.add_argument("--beam", type=int, default=1)
    given = parser.parse_args()
    texts = [line for line in given.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    program = [sys.executable, "-c", "from transduct.interfaces.cli import main; main()"]
    words = ["serve", given.model, "--port", "0", "--waiting", given.waiting]
    server = subprocess.Popen([*program, *words], stderr=subprocess.PIPE, text=True)
    try:
        measure(server, texts, list(map(int, given.clients.split(","))), given.seconds, given.beam)
    finally:
        server.terminate()


def measure(
    server: subprocess.Popen[str], texts: list[str], clients: list[int], seconds: float, beam: int
) -> None:
    """Wait for a starting server, load it, and print a row for each number of clients."""
    assert server.stderr is not None
    port = int(re.search(r":(\d+) ", server.stderr.readline())[1])  # type: ignore[index]
    threading.Thread(target=server.stderr.read, daemon=True).start()
    post(http.client.HTTPConnection("127.0.0.1", port), texts[0], beam)
    for number in clients:
        before = batches(port)
        took, refused = load(port, texts, number, seconds, beam)
        slices, inputs = (
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
