"""Activation functions, alone and as gates, and other ops on single elements: scales, caps and limits."""

from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.argument_checks import check_argument, check_rows_or_slots, check_vector
from sporelm.ops.elementwise import check_same_shape
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32

KINDS = ("gelu", "gelu_tanh", "gelu_quick", "linear", "relu", "relu_squared", "sigmoid", "silu", "softplus")
_erf: Any = np.frompyfunc(erf, 1, 1)


def check_kind(kind: str) -> None:
    """Raise OpError unless `kind` is an activation function."""
    require(kind in KINDS, f"activation {kind!r} must be one of {', '.join(KINDS)}")


def _activate_spec(x: Any, *, kind: str) -> Spec:
    check_kind(kind)
    return check_rows_or_slots("x", x)


def _activate_mul_spec(gate: Any, up: Any, *, kind: str) -> Spec:
    check_kind(kind)
    return check_same_shape(gate, up)


def _scale_spec(x: Any, *, factor: float) -> Spec:
    require(bool(np.isfinite(factor)), f"factor {factor} must be finite")
    return check_rows_or_slots("x", x)


def _scale_by_spec(x: Any, factor: Any) -> Spec:
    given = check_vector("factor", factor)
    require(given.shape == (1,), f"factor {given} must be one number")
    return check_rows_or_slots("x", x)


def _softcap_spec(x: Any, *, cap: float) -> Spec:
    require(0 < cap < np.inf, f"cap {cap} must be positive")
    return check_rows_or_slots("x", x)


def _clip_spec(x: Any, *, limit: float) -> Spec:
    require(0 < limit < np.inf, f"limit {limit} must be positive")
    return check_rows_or_slots("x", x)


def _xielu_spec(x: Any, alpha_p: Any, alpha_n: Any, beta: Any, eps: Any, *, layer: int) -> Spec:
    for name, given in (("alpha_p", alpha_p), ("alpha_n", alpha_n), ("beta", beta), ("eps", eps)):
        found = check_argument(name, given, F32, 2 if len(spec_of(given).shape) == 2 else 1)
        require(found.shape[1:] in ((), (1,)), f"{name} {found} must have one number a layer")
        require(0 <= layer < require_fixed(found.shape[0]), f"layer {layer} must be one of those of {name} {found}")
    return check_rows_or_slots("x", x)


def apply_activation(x: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    """Return the function `kind` of each value, computed in float64."""
    exact = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if kind == "gelu":
            exact = exact / 2 * (1 + _erf(exact / sqrt(2)).astype(np.float64))
        elif kind == "gelu_tanh":
            exact = exact / 2 * (1 + np.tanh(sqrt(2 / pi) * (exact + 0.044715 * exact**3)))
        elif kind == "gelu_quick":
            exact = exact / (1 + np.exp(-1.702 * exact))
        elif kind == "linear":
            return x.copy()
        elif kind == "sigmoid":
            exact = 1 / (1 + np.exp(-exact))
        elif kind == "silu":
            exact = exact / (1 + np.exp(-exact))
        elif kind == "softplus":
            exact = np.logaddexp(exact, 0)
        else:
            exact = np.maximum(exact, 0) ** (2 if kind == "relu_squared" else 1)
    return exact.astype(np.float32)


@op(_activate_spec)
def activate(x, *, kind):  # x [tokens, width]
    """Apply an activation function to each value.

    gelu           x times the normal distribution up to x (Hendrycks, Gimpel 2016)
    gelu_tanh      the same by a tanh (GPT-2's, Gemma's)
    gelu_quick     x * sigmoid(1.702 x)
    relu, relu_squared (Primer, So et al. 2021), sigmoid, silu
    softplus       log(1 + exp(x)) (Dugas et al. 2001; gates of Laguna)
    linear         x itself, for gates that multiply without a function
    """
    return apply_activation(x, kind)


@op(_activate_mul_spec)
def activate_mul(gate, up, *, kind):  # gate, up [tokens, width]
    """Return activate(gate) * up (GLU variants, Shazeer 2020)."""
    return apply_activation(gate, kind) * up


@op(_scale_spec)
def scale(x, *, factor):  # x [tokens, width]
    """Multiply x by a number."""
    return x * np.float32(factor)


@op(_scale_by_spec)
def scale_by(x, factor):  # x [tokens, width], factor [1]
    """Multiply x by a number that a tensor holds (Gemma 4's layers)."""
    return x * factor


@op(_clip_spec)
def clip(x, *, limit):  # x [tokens, width]
    """Limit values to the range from -limit to limit (queries, keys and values of OLMo, MPT and DBRX)."""
    return np.clip(x, np.float32(-limit), np.float32(limit))


@op(_softcap_spec)
def softcap(x, *, cap):  # x [tokens, width]
    """Return cap * tanh(x / cap), which lies between -cap and cap (Gemma 2)."""
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


@op(_xielu_spec)
def xielu(x, alpha_p, alpha_n, beta, eps, *, layer):  # x [tokens, width], the others [layers] or [layers, 1]
    """Apply xIELU with a layer's learned parameters (Huang, Schlag 2024; Apertus).

    The result is softplus(alpha_p) x^2 + beta x where x > 0, elsewhere (beta + softplus(alpha_n)) (e^min(x, eps) - 1 -
    x) + beta x.
    """
    raw_p, raw_n, slope, least = (float(each.reshape(-1)[layer]) for each in (alpha_p, alpha_n, beta, eps))
    exact = x.astype(np.float64)
    above = np.logaddexp(0, raw_p) * exact**2
    below = (slope + np.logaddexp(0, raw_n)) * (np.expm1(np.minimum(exact, least)) - exact)
    return (np.where(exact > 0, above, below) + slope * exact).astype(np.float32)
