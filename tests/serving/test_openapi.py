"""The description of a server is valid, and the server does as it says."""

import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import transduct
from tests.interfaces.clients import service_of, serving

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def service(trained_run):
    return service_of(transduct.load(trained_run), pair=("en", "de"))


def test_the_description_is_valid_and_has_every_path(service):
    described = service.description()
    validate(described)
    assert {
        (path, method.upper()) for path, each in described["paths"].items() for method in each
    } == {(each.path.replace(":path", ""), each.method) for each in service.endpoints}


@pytest.fixture
def subnormal():
    """Numbers that Hypothesis needs, and that our kernels flush to zero."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(True)


@pytest.mark.usefixtures("subnormal")
def test_nothing_that_fits_the_description_breaks_the_server(service):
    with serving(service) as client:
        address = f"http://127.0.0.1:{client.port}"
        for result in schemathesis.openapi.from_dict(service.description()).get_all_operations():

            @settings(
                max_examples=3,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=result.ok().as_strategy())
            def ask(case):
                case.validate_response(case.call(base_url=address), checks=CHECKS)

            ask()
