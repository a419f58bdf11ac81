"""Expert routing: groups and ties against plain torch under the interpreter, and machine code of five cards."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter

OPTIONS: list[dict[str, Any]] = [
    {"k": 8, "renormalize": True},
    {"k": 4, "scores": "softmax_of_chosen"},
    {"k": 3, "scores": "softmax_of_near", "near": 0.02},
    {"k": 6, "scores": "sigmoid", "groups": 3, "top_groups": 2, "group_score": "sum_of_two", "epsilon": 1e-20},
    {"k": 6, "groups": 12, "top_groups": 2, "scale": 16.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_experts_are_those_of_plain_torch(options: dict[str, Any]) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.expert_routing import route
    from sporelm.backends.torch.expert_routing import route as torch_route

    drawn = np.random.default_rng(0).choice(np.array([-np.inf, -1, 0, 0.5, 0.75], np.float32), (9, 36))  # many ties
    drawn[3, 7] = np.nan
    logits, factors = torch.from_numpy(drawn), torch.linspace(0.5, 2, 36)
    weights, ids = route(logits, None, factors, **options)
    expected_weights, expected_ids = torch_route(logits, None, factors, **options)
    assert torch.equal(ids, expected_ids)
    assert torch.allclose(weights, expected_weights, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("card", CARDS)
def test_a_warp_routes_a_token(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.expert_routing import route
    from sporelm.backends.cuda.split_zero_experts import split_zero_experts

    grouped = {"scores": "sigmoid", "groups": 8, "top_groups": 4, "group_score": "sum_of_two", "renormalize": True}
    few, many = torch.empty(2, 128, dtype=torch.bfloat16), torch.empty(2, 256)
    weights, ids = torch.empty(2, 8), torch.zeros(2, 8, dtype=torch.int32)
    launches = record_launches(
        lambda: (
            route(few, k=8, renormalize=True),
            route(many, torch.empty(256), k=8, scale=2.5, **grouped),
            split_zero_experts(weights, ids, experts=100),
        )
    )
    assert len(launches) == 3
    for launch in launches:
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.registers <= 128
        assert launch.options["num_warps"] == 1
