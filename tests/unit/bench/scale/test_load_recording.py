"""A real engine's times are noted, with a stand-in for its worker."""

from typing import Any

import numpy as np

from sporelm.bench.scale.load_recording import record_load
from sporelm.bench.scale.request_trace import TracedRequest
from sporelm.engine import Engine, EngineConfig, ModelOutput, Step


class StandIn:
    """Answers each row with token 1."""

    kv = "f16"

    def run(self, step: Step, previous: Any = None) -> ModelOutput:
        logits = np.zeros((max(1, step.num_outputs), 100), np.float32)
        logits[:, 1] = 1
        return ModelOutput(np.full(len(logits), 1, np.int32), logits)


def test_requests_are_served_as_they_arrive() -> None:
    limits = EngineConfig(256, 256, 100, 64, 4, 16)
    requests = [TracedRequest(0.02, 10, 3), TracedRequest(0.0, 100, 5)]
    first, second = record_load(Engine(StandIn(), limits), requests)
    assert (first.request, second.request) == (requests[1], requests[0])
    for each in (first, second):
        assert 0 < each.first_token_seconds < each.last_token_seconds
