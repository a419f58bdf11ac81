"""Expert routing: which experts compute a token, and with what weights."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32, I32

SCORES = ("softmax", "softmax_of_chosen", "softmax_of_near", "sigmoid", "sigmoid_of_chosen")
GROUP_SCORES = ("max", "sum_of_two")
MAX_EXPERTS = 4096  # of a layer: bounds a kernel's scratch memory


def _route_spec(
    logits: Any,
    selection_bias: Any = None,
    factors: Any = None,
    *,
    k: int,
    scores: str = "softmax",
    renormalize: bool = False,
    epsilon: float = 0.0,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "max",
    near: float = 0.0,
) -> tuple[Spec, Spec]:
    given = check_rows("logits", logits)
    tokens, experts = given.shape[0], require_fixed(given.shape[1])
    require(1 <= experts <= MAX_EXPERTS, f"logits {given} are of {experts} experts; 1 to {MAX_EXPERTS} are allowed")
    require(scores in SCORES, f"scores {scores!r} must be one of {', '.join(SCORES)}")
    require(0 <= near < np.inf, f"near {near} must be finite and not negative")
    require(group_score in GROUP_SCORES, f"group_score {group_score!r} must be one of {', '.join(GROUP_SCORES)}")
    for name, numbers in (("selection_bias", selection_bias), ("factors", factors)):
        if numbers is not None:
            found = check_vector(name, numbers)
            require(found.shape == (experts,), f"{name} {found} must have {experts} elements")
    whole = groups >= 1 and experts % groups == 0
    require(whole, f"{experts} experts cannot be cut into {groups} groups of equal size")
    require(1 <= top_groups <= groups, f"top_groups {top_groups} must lie between 1 and the {groups} groups")
    pairs = group_score == "max" or groups == 1 or experts // groups >= 2
    require(pairs, f"group_score {group_score} needs groups of two experts or more, not {experts} in {groups} groups")
    eligible = experts // groups * top_groups
    require(1 <= k <= eligible, f"k {k} must lie between 1 and the {eligible} experts that may be chosen")
    return Spec((tokens, k), F32), Spec((tokens, k), I32)


@op(_route_spec)
def route(
    logits,  # [tokens, experts]
    selection_bias=None,  # [experts]
    factors=None,  # [experts]
    *,
    k,
    scores="softmax",
    renormalize=False,
    epsilon=0.0,
    scale=1.0,
    groups=1,
    top_groups=1,
    group_score="max",
    near=0.0,
):
    """Return the k experts of each token: weights float32 [tokens, k] and ids int32 [tokens, k].

    Experts stand in descending order of the score that selected them, lower ids first among equals; NaN is the lowest
    score.

    scores       of an expert: "softmax" over all experts (Switch, Fedus et al. 2021; Qwen's, DeepSeek V2's);
                 "softmax_of_chosen", over the k selected experts (Mixtral's, gpt-oss's); "sigmoid" (DeepSeek V3's);
                 "softmax_of_near" (SparseMixer, Liu et al. 2024; Phi-3.5-MoE's): for each selected expert, over itself
                 and the experts not yet selected whose logit s is near its own, m: (m - s) / max(|s|, m) is at most
                 `near`; "sigmoid_of_chosen": experts are selected by their logits, to which the bias is added
                 (Kolibri's)
    selection_bias   is added to the scores for the selection only, not to the weights (DeepSeek V3, ERNIE 4.5)
    groups       experts form this many groups of equal size; only experts of the `top_groups` best groups are
                 eligible. A group's score is its best expert's ("max": DeepSeek V2's group-limited routing) or the sum
                 of its best two ("sum_of_two": DeepSeek V3's)
    renormalize  weights are divided by their sum + `epsilon`; then, in any case, multiplied by `scale`
    factors      multiply each expert's weight last (Gemma 4)

    Without a bias, and unless scores are summed, experts are selected by their logits, which have the same order.
    """
    scored = _score(logits.astype(np.float64), scores)
    by_logits = selection_bias is None and (groups == 1 or group_score == "max")
    choice = logits if by_logits else scored.astype(np.float32)
    if selection_bias is not None:
        choice = choice + selection_bias
    choice = np.where(np.isnan(choice), -np.inf, choice)
    ids = _find_top_k(choice, _eligible_experts(choice, groups, top_groups, group_score), k)
    weights = np.take_along_axis(scored, ids, axis=1)
    if scores == "softmax_of_chosen":
        weights = _softmax(weights)
    if scores == "sigmoid_of_chosen":
        weights = _score(weights, "sigmoid")
    if scores == "softmax_of_near":
        weights = _sparse_mixer_weights(logits, ids, np.float32(near))
    if renormalize:
        with np.errstate(divide="ignore", invalid="ignore"):  # all of them are 0
            weights = weights / (weights.sum(axis=1, keepdims=True) + epsilon)
    weights = (weights * scale).astype(np.float32)
    return weights if factors is None else weights * factors[ids], ids.astype(np.int32)


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # an infinite logit: NaN
        powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _sparse_mixer_weights(logits: NDArray[np.float32], ids: NDArray[np.int64], near: np.float32) -> NDArray[np.float64]:
    """Return float64 [tokens, k]: the softmax of each selected expert over near experts not selected before."""
    weights, rows = np.empty(ids.shape), np.arange(len(ids))
    left = np.ones(logits.shape, np.bool_)
    for slot, chosen in enumerate(ids.T):
        own = logits[rows, chosen][:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            far = (own - logits) / np.maximum(np.abs(logits), own) > near
            powers = np.exp(logits.astype(np.float64) - own)
        weights[:, slot] = 1 / np.where(left & ~far, powers, 0).sum(axis=1)
        left[rows, chosen] = False
    return weights


def _score(logits: NDArray[np.float64], scores: str) -> NDArray[np.float64]:
    if scores == "softmax":
        return _softmax(logits)
    if scores == "sigmoid":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-logits))
    return logits


def _find_top_k(values: NDArray[Any], allowed: NDArray[np.bool_], k: int) -> NDArray[np.int64]:
    """Return the indices of the k greatest eligible values of each row."""
    return np.lexsort((-values, ~allowed), axis=1)[:, :k]


def _eligible_experts(choice: NDArray[Any], groups: int, top_groups: int, group_score: str) -> NDArray[np.bool_]:
    """Return which experts are in a group that is eligible."""
    if top_groups == groups:
        return np.ones(choice.shape, np.bool_)
    members = np.sort(choice.reshape(len(choice), groups, -1), axis=2)
    with np.errstate(invalid="ignore"):
        best = members[:, :, -1] if group_score == "max" else members[:, :, -1] + members[:, :, -2]
    best = np.where(np.isnan(best), -np.inf, best)
    taken = _find_top_k(best, np.ones(best.shape, np.bool_), top_groups)
    chosen = np.zeros(best.shape, np.bool_)
    np.put_along_axis(chosen, taken, True, axis=1)
    return np.repeat(chosen, choice.shape[1] // groups, axis=1)
