"""Routing and products of experts against the models' own formulas, in plain float64 loops."""

from math import exp
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.quant import F32, Q8_0, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

BACKEND = ReferenceBackend()
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.standard_normal((6, 12)).astype(np.float32)
BIAS = (RANDOM.standard_normal(12) * 0.3).astype(np.float32)


def softmax(row: list[float]) -> list[float]:
    powers = [exp(x - max(row)) for x in row]
    return [power / sum(powers) for power in powers]


def best(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda e: (-scores[e], e))[:k]


def mixtral(row: list[float]) -> tuple[list[int], list[float]]:
    ids = best(row, 3)
    return ids, softmax([row[e] for e in ids])


def qwen2_moe(row: list[float]) -> tuple[list[int], list[float]]:
    scores = softmax(row)
    return best(scores, 3), [scores[e] for e in best(scores, 3)]


def qwen3_moe(row: list[float]) -> tuple[list[int], list[float]]:
    ids, weights = qwen2_moe(row)
    return ids, [weight / sum(weights) for weight in weights]


def deepseek_v2(row: list[float]) -> tuple[list[int], list[float]]:
    """Groups of three experts, the two with the best expert."""
    scores = softmax(row)
    groups = best([max(scores[3 * g : 3 * g + 3]) for g in range(4)], 2)
    open_scores = [score if e // 3 in groups else 0.0 for e, score in enumerate(scores)]
    ids = best(open_scores, 3)
    return ids, [16 * scores[e] for e in ids]


def deepseek_v3(row: list[float]) -> tuple[list[int], list[float]]:
    """The same by the sum of the best two, with a bias that chooses alone."""
    scores = [1 / (1 + exp(-x)) for x in row]
    wanted = [score + float(bias) for score, bias in zip(scores, BIAS, strict=True)]
    groups = best([sum(sorted(wanted[3 * g : 3 * g + 3])[1:]) for g in range(4)], 2)
    ids = best([w if e // 3 in groups else -1e9 for e, w in enumerate(wanted)], 3)
    total = sum(scores[e] for e in ids) + 1e-20
    return ids, [2.5 * scores[e] / total for e in ids]


def ernie(row: list[float]) -> tuple[list[int], list[float]]:
    scores = softmax(row)
    ids = best([score + float(bias) for score, bias in zip(scores, BIAS, strict=True)], 3)
    return ids, [scores[e] / sum(scores[i] for i in ids) for e in ids]


V3 = {"scores": "sigmoid", "groups": 4, "top_groups": 2, "group_score": "sum_of_two", "renormalize": True}
MODELS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "Mixtral, gpt-oss": (mixtral, {"scores": "softmax_of_chosen"}, False),
    "Qwen2-MoE": (qwen2_moe, {}, False),
    "Qwen3-MoE": (qwen3_moe, {"renormalize": True}, False),
    "DeepSeek V2": (deepseek_v2, {"groups": 4, "top_groups": 2, "scale": 16.0}, False),
    "DeepSeek V3": (deepseek_v3, V3 | {"epsilon": 1e-20, "scale": 2.5}, True),
    "ERNIE 4.5": (ernie, {"renormalize": True, "epsilon": 1e-12}, True),
}


@pytest.mark.parametrize("model", MODELS)
def test_route_is_the_models_own(model: str) -> None:
    formula, options, biased = MODELS[model]
    bias = (BACKEND.tensor(BIAS),) if biased else ()
    weights, ids = ops.route(BACKEND.tensor(LOGITS), *bias, k=3, **options)
    expected = [formula([float(x) for x in row]) for row in LOGITS]
    assert ids.numpy().tolist() == [chosen for chosen, _ in expected]
    assert_close(weights.numpy(), [shares for _, shares in expected], "f32")


def test_ties_take_the_lowest_ids() -> None:
    for scores in ("softmax", "softmax_of_chosen", "sigmoid"):
        _, ids = ops.route(BACKEND.tensor(np.array([[1, 2, 2, 1, 2, 0]], np.float32)), k=5, scores=scores)
        assert ids.numpy().tolist() == [[1, 2, 4, 0, 3]]
    _, ids = ops.route(BACKEND.tensor(np.zeros((1, 6), np.float32)), k=2, groups=3, top_groups=1)
    assert ids.numpy().tolist() == [[0, 1]]


def test_nan_is_chosen_last_and_shows_in_its_row_alone() -> None:
    logits = LOGITS.copy()
    logits[1, 0] = np.nan
    weights, ids = (result.numpy() for result in ops.route(BACKEND.tensor(logits), k=3))
    whole, chosen = (result.numpy() for result in ops.route(BACKEND.tensor(LOGITS), k=3))
    assert 0 not in ids[1]
    assert np.isnan(weights[1]).all()
    assert np.array_equal(np.delete(weights, 1, 0), np.delete(whole, 1, 0))
    assert np.array_equal(np.delete(ids, 1, 0), np.delete(chosen, 1, 0))


@pytest.mark.parametrize("number_format", [F32, Q8_0])
def test_products_equal_each_experts_own_product(number_format: Any) -> None:
    values = RANDOM.standard_normal((3 * 5, 32)).astype(np.float32)
    blocks = quantize_tensor(number_format, values)
    weight = BACKEND.pack(StoredTensor("w", number_format, (3, 5, 32), blocks))
    alone = [
        BACKEND.pack(StoredTensor("w", number_format, (5, 32), part)) for part in np.split(blocks.reshape(15, -1), 3)
    ]
    ids, bias = np.array([[2, 0], [1, 2], [2, 1], [0, 1]], np.int32), RANDOM.standard_normal((3, 5), np.float32)
    for shape in ((4, 32), (4, 2, 32)):
        x = RANDOM.standard_normal(shape).astype(np.float32)
        found = ops.linear_experts(BACKEND.tensor(x), weight, BACKEND.tensor(ids), BACKEND.tensor(bias)).numpy()
        for token, slot in np.ndindex(4, 2):
            row, expert = (x[token] if x.ndim == 2 else x[token, slot]), ids[token, slot]
            expected = ops.linear(BACKEND.tensor(row[None]), alone[expert]).numpy()[0] + bias[expert]
            assert_close(found[token, slot], expected, "f32")


def test_combine_experts() -> None:
    y, weights = RANDOM.standard_normal((4, 3, 7), np.float32), RANDOM.standard_normal((4, 3), np.float32)
    found = ops.combine_experts(BACKEND.tensor(y), BACKEND.tensor(weights)).numpy()
    assert_close(found, np.einsum("tkw,tk->tw", y.astype(float), weights), "f32")
    alone = ops.combine_experts(BACKEND.tensor(y[:, 0].copy()), BACKEND.tensor(weights[:, :1].copy())).numpy()
    assert_close(alone, y[:, 0] * weights[:, :1], "exact")


def test_clamped_swiglu() -> None:
    gate = np.array([[-30, -1, 0, 2, 7, 9]], np.float32)
    up = np.array([[1, -9, 3, 9, -7, 0.5]], np.float32)
    found = ops.clamped_swiglu(BACKEND.tensor(gate), BACKEND.tensor(up), alpha=1.702, limit=7.0).numpy()
    expected = [
        (min(max(u, -7), 7) + 1) * min(g, 7) / (1 + exp(-1.702 * min(g, 7)))
        for g, u in zip(gate[0].tolist(), up[0].tolist(), strict=True)
    ]
    assert_close(found, [expected], "f32")
