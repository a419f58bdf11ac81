"""Which experts compute a token, and how much each of them counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.arguments import rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32, I32

SCORES = ("softmax", "softmax_of_chosen", "softmax_of_near", "sigmoid", "sigmoid_of_chosen")
GROUP_SCORES = ("max", "sum_of_two")
MOST_EXPERTS = 4096  # of a layer: bounds what a kernel keeps beside a row


def _routed(
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
    given = rows("logits", logits)
    tokens, experts = given.shape[0], fixed(given.shape[1])
    require(1 <= experts <= MOST_EXPERTS, f"logits {given} are of {experts} experts; 1 to {MOST_EXPERTS} are allowed")
    require(scores in SCORES, f"scores {scores!r} must be one of {', '.join(SCORES)}")
    require(0 <= near < np.inf, f"near {near} must be finite and not negative")
    require(group_score in GROUP_SCORES, f"group_score {group_score!r} must be one of {', '.join(GROUP_SCORES)}")
    for name, numbers in (("selection_bias", selection_bias), ("factors", factors)):
        if numbers is not None:
            found = vector(name, numbers)
            require(found.shape == (experts,), f"{name} {found} must have {experts} elements")
    whole = groups >= 1 and experts % groups == 0
    require(whole, f"{experts} experts cannot be cut into {groups} groups of equal size")
    require(1 <= top_groups <= groups, f"top_groups {top_groups} must lie between 1 and the {groups} groups")
    pairs = group_score == "max" or groups == 1 or experts // groups >= 2
    require(pairs, f"group_score {group_score} needs groups of two experts or more, not {experts} in {groups} groups")
    eligible = experts // groups * top_groups
    require(1 <= k <= eligible, f"k {k} must lie between 1 and the {eligible} experts that may be chosen")
    return Spec((tokens, k), F32), Spec((tokens, k), I32)


@op(_routed)
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
    """The k experts of each token: their weights float32 [tokens, k] and ids int32 [tokens, k], in falling order of
    what they were chosen by, lower ids first among equals; NaN counts as the least.

    scores       of an expert: "softmax" over all experts (Switch, Fedus et al. 2021; Qwen's, DeepSeek V2's),
                 "softmax_of_chosen", over the k that were chosen (Mixtral's, gpt-oss's), or "sigmoid" (DeepSeek V3's);
                 "softmax_of_near", for each that is chosen over itself and those not chosen yet whose logit s is near
                 its own, m: where (m - s) / max(|s|, m) is at most `near` (Phi-3.5-MoE's; Liu et al. 2024);
                 "sigmoid_of_chosen": they are chosen by their logits, and the bias is added to those (Kolibri's)
    selection_bias   is added to the scores when experts are chosen, and to no weight (DeepSeek V3, ERNIE 4.5)
    groups       experts stand in so many groups of equal size, and only those of the `top_groups` best may be chosen. A
                 group is as good as its best expert ("max": DeepSeek V2's group-limited choice) or as its best two
                 together ("sum_of_two": DeepSeek V3's)
    renormalize  weights are divided by their sum + `epsilon`; then, in any case, multiplied by `scale`
    factors      by which each expert's weight is multiplied last (Gemma 4)

    Without a bias, and where no scores are summed, experts are chosen by their logits, which have the scores' order.
    """
    scored = _scored(logits.astype(np.float64), scores)
    by_logits = selection_bias is None and (groups == 1 or group_score == "max")
    choice = logits if by_logits else scored.astype(np.float32)
    if selection_bias is not None:
        choice = choice + selection_bias
    choice = np.where(np.isnan(choice), -np.inf, choice)
    ids = _greatest(choice, _open(choice, groups, top_groups, group_score), k)
    weights = np.take_along_axis(scored, ids, axis=1)
    if scores == "softmax_of_chosen":
        weights = _softmax(weights)
    if scores == "sigmoid_of_chosen":
        weights = _scored(weights, "sigmoid")
    if scores == "softmax_of_near":
        weights = _softmax_of_near(logits, ids, np.float32(near))
    if renormalize:
        with np.errstate(divide="ignore", invalid="ignore"):  # all of them are 0
            weights = weights / (weights.sum(axis=1, keepdims=True) + epsilon)
    weights = (weights * scale).astype(np.float32)
    return weights if factors is None else weights * factors[ids], ids.astype(np.int32)


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # an infinite logit: NaN
        powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmax_of_near(logits: NDArray[np.float32], ids: NDArray[np.int64], near: np.float32) -> NDArray[np.float64]:
    """float64 [tokens, k]: of each that was chosen, among those near it that were not chosen before."""
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


def _scored(logits: NDArray[np.float64], scores: str) -> NDArray[np.float64]:
    if scores == "softmax":
        return _softmax(logits)
    if scores == "sigmoid":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-logits))
    return logits


def _greatest(values: NDArray[Any], allowed: NDArray[np.bool_], k: int) -> NDArray[np.int64]:
    """Places of the k greatest of each row, of those that are allowed."""
    return np.lexsort((-values, ~allowed), axis=1)[:, :k]


def _open(choice: NDArray[Any], groups: int, top_groups: int, group_score: str) -> NDArray[np.bool_]:
    """Which experts stand in a group that may be chosen from."""
    if top_groups == groups:
        return np.ones(choice.shape, np.bool_)
    members = np.sort(choice.reshape(len(choice), groups, -1), axis=2)
    with np.errstate(invalid="ignore"):
        best = members[:, :, -1] if group_score == "max" else members[:, :, -1] + members[:, :, -2]
    best = np.where(np.isnan(best), -np.inf, best)
    taken = _greatest(best, np.ones(best.shape, np.bool_), top_groups)
    chosen = np.zeros(best.shape, np.bool_)
    np.put_along_axis(chosen, taken, True, axis=1)
    return np.repeat(chosen, choice.shape[1] // groups, axis=1)
