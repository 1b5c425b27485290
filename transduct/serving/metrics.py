"""What a server counts, for Prometheus. Labels are few: paths that do not exist are one."""

from transduct.errors import needing
from transduct.serving.calls import Call
from transduct.serving.served_models import Models

with needing("serve"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        at, of = ["path", "model"], ["model"]

        def seconds(name: str, about: str, labels: list[str]) -> Histogram:
            return Histogram(
                f"transduct_{name}_seconds", about, labels, registry=registry, buckets=BUCKETS
            )

        self._requests = Counter(
            "transduct_requests", "Answers", ["path", "model", "status"], registry=registry
        )
        self._latency = seconds("request", "Seconds from a request to its answer's end", at)
        self._queue = seconds("queue", "Seconds from a request to the begin of its work", at)
        self._first = seconds("first_token", "Seconds from a request to its first token", at)
        self._in = Counter("transduct_tokens_in", "Tokens read", of, registry=registry)
        self._out = Counter("transduct_tokens_out", "Tokens written", of, registry=registry)
        self.inputs = Counter("transduct_inputs", "Inputs answered", registry=registry)
        self._rows = Histogram(
            "transduct_batch_size", "Rows worked on together", buckets=ROWS, registry=registry
        )
        self._batch = Histogram("transduct_batch_seconds", "Seconds of a batch", registry=registry)
        self.refused = Counter(
            "transduct_connections_refused", "Connections refused", registry=registry
        )

    def watch(self, models: Models) -> None:
        """Show how much waits for these models, and how much memory the running batches use."""
        waiting = Gauge("transduct_waiting", "Inputs waiting in the queue", registry=self.registry)
        waiting.set_function(lambda: sum(each.batcher.waiting for each in models.loaded))
        pages = Gauge("transduct_pages_used", "Pages of running batches", registry=self.registry)
        pages.set_function(lambda: sum(each.batcher.pages for each in models.loaded))

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        self._rows.observe(rows)
        self._batch.observe(seconds)

    def call(self, call: Call, status: int) -> None:
        """Count a request that has ended."""
        self._requests.labels(call.path, call.model, status).inc()
        self._latency.labels(call.path, call.model).observe(call.seconds)
        if call.queued is not None:
            self._queue.labels(call.path, call.model).observe(call.queued)
        if call.first is not None:
            self._first.labels(call.path, call.model).observe(call.first)
        if call.tokens_in or call.tokens_out:
            self._in.labels(call.model).inc(call.tokens_in)
            self._out.labels(call.model).inc(call.tokens_out)
