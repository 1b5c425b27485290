"""What is counted, with few labels."""

from tests.helpers import Stub
from tests.interfaces.clients import service_of, serving


def test_latency_queue_and_unknown_paths_are_counted():
    service = service_of(Stub(predict=lambda inputs: inputs), "stub")
    with serving(service) as client:
        client.post("/predict", {"inputs": ["a"]})
        for path in ("/nothing", "/nothing/else"):
            client("GET", path)
        client("GET", "/predict")
        service.metrics.refused.inc()
        said = client("GET", "/metrics")[2].decode()
    at = '{model="stub",path="/predict"}'
    for name in ("request", "queue"):
        assert f"transduct_{name}_seconds_count{at} 1.0" in said
    assert 'transduct_requests_total{model="",path="unknown",status="404"} 2.0' in said
    assert 'transduct_requests_total{model="",path="unknown",status="405"} 1.0' in said
    assert "transduct_connections_refused_total 1.0" in said
    assert 'transduct_tokens_in_total{model="stub"}' in said
