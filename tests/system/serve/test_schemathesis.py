"""schemathesis on the server's own description: whatever is sent, no 5xx, and answers are as they are described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sporelm.serve.app import ENDPOINTS
from sporelm.serve.http.openapi import openapi_document
from sporelm.serve.routes.conversations import conversation_endpoints
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running, run_server, server_options

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
positive_data_acceptance = pytest.importorskip("schemathesis.specs.openapi.checks").positive_data_acceptance
hypothesis = pytest.importorskip("hypothesis")


@pytest.fixture(scope="module")
def running(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose answers are short."""
    folder = tmp_path_factory.mktemp("sessions")
    config = ServeConfig(**server_options(models=(ModelSpec("story", str(chatty)),), max_tokens=4, session_dir=folder))
    made, stop = run_server(config)
    yield made
    stop()


ROUTES = [*ENDPOINTS, *conversation_endpoints()]
SCHEMA = schemathesis.openapi.from_dict(openapi_document(ROUTES, needs_key=False))
# A text may be wrong because it is longer than any body.
SCHEMA.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "409", "413", "415", "422"]
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
EVERYTHING = list(hypothesis.HealthCheck)


# What a text, or a name, must be for an answer to be made; hypothesis chooses all the rest.
FITTING: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Lily"}],
    "input": "Lily",
    "prompt": "Lily",
    "tokens": [80, 147],
    "encoding": "text",
    "tools": None,
    "stop": None,
    "seed": 1,
}
LEFT_OUT = ("model", "adapter", "response_format", "tool_choice", "logit_bias", "format", "suffix", "options", "name")


def fitting(body: Any) -> Any:
    """A request whose texts the model can read."""
    if not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name not in LEFT_OUT}
    return {name: FITTING.get(name, value) for name, value in kept.items()}


def ask(operation: Any, running: Running, examples: int) -> None:
    """Send `examples` valid and invalid requests to a route, and check the replies.

    A valid one may be refused all the same, for an unknown model or a tool of another type than function: the schema
    cannot say that.
    """
    ask_in(schemathesis.GenerationMode.POSITIVE, operation, running, examples)
    if len(operation.body):  # else nothing about it can be wrong, for which hypothesis searches long
        ask_in(schemathesis.GenerationMode.NEGATIVE, operation, running, examples)


def ask_in(mode: Any, operation: Any, running: Running, examples: int) -> None:
    """The same with right requests alone, or with wrong ones."""

    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=EVERYTHING
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), fits=hypothesis.strategies.booleans())
    def send(case: Any, fits: bool) -> None:
        if fits and mode is schemathesis.GenerationMode.POSITIVE:
            case.body = fitting(case.body)
        case.call_and_validate(base_url=running.url, excluded_checks=[positive_data_acceptance], timeout=300)

    send()


def test_every_route_is_described() -> None:
    assert len(OPERATIONS) == len(ROUTES)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.label)
def test_a_few_requests(operation: Any, running: Running) -> None:
    ask(operation, running, 2)


@pytest.mark.all
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.label)
def test_many_requests(operation: Any, running: Running) -> None:
    ask(operation, running, 200)
