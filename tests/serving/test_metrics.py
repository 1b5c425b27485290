"""What is counted, with few labels."""

import time

from tests.helpers import Stub
from tests.interfaces.clients import service_of, serving


def test_answers_inputs_latency_queue_and_unknown_paths_are_counted():
    service = service_of(Stub(predict=lambda inputs: inputs), "stub")
    with serving(service) as client:
        while client("GET", "/health")[0] != 200:  # what warms it counts too
            time.sleep(0.01)
        client.post("/predict", {"inputs": ["a", "b"]})
        client.refused("/predict", {"inputs": "a"}, 400)
        for path in ("/nothing", "/nothing/else", "/predict"):
            client("GET", path)
        service.metrics.refused.inc()
        said = client("GET", "/metrics")[2].decode()
    at = '{model="stub",path="/predict"}'
    for name in ("request", "queue"):
        assert f"transduct_{name}_seconds_count{at} 1.0" in said
    for model, path, status, count in (
        ("stub", "/predict", 200, 1),
        ("", "/predict", 400, 1),
        ("", "unknown", 404, 2),
        ("", "unknown", 405, 1),
    ):
        labels = f'model="{model}",path="{path}",status="{status}"'
        assert f"transduct_requests_total{{{labels}}} {count}.0" in said
    assert "transduct_inputs_total 2.0" in said
    assert "transduct_waiting 0.0" in said
    assert "transduct_pages_used 0.0" in said
    assert "transduct_connections_refused_total 1.0" in said
    assert 'transduct_tokens_in_total{model="stub"}' in said
