"""Activation functions, alone and as gates, scales and soft caps. An item is one row."""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import softplus

# erf(x) = 1 - polynomial(1 / (1 + P x)) exp(-x x), within 1.5e-7 (Abramowitz and Stegun 7.1.26)
ERF_P = 0.3275911
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def emit_activation(k: Builder, x: Val, kind: str) -> Val:
    """Apply the function `kind` to a vector."""
    if kind == "gelu":
        return x * 0.5 * (erf(k, x * sqrt(0.5)) + 1.0)
    if kind == "gelu_tanh":
        return x * 0.5 * (k.tanh(k.fma(x * x * x, k.const(x.type, 0.044715), x) * sqrt(2 / pi)) + 1.0)
    if kind == "gelu_quick":
        return x / (k.exp(x * -1.702) + 1.0)
    if kind == "linear":
        return x
    if kind == "sigmoid":
        return k.const(x.type, 1.0) / (k.exp(-x) + 1.0)
    if kind == "silu":
        return x / (k.exp(-x) + 1.0)
    if kind == "softplus":
        return softplus(k, x)
    positive = k.select(x < 0.0, k.const(x.type, 0.0), x)  # NaN stays
    return positive * positive if kind == "relu_squared" else positive


def erf(k: Builder, x: Val) -> Val:
    """Return erf(x) within 1.5e-7; NaN gives NaN."""
    size = k.fabs(x)
    t = k.const(x.type, 1.0) / (size * ERF_P + 1.0)
    y = k.const(x.type, ERF[0])
    for coefficient in ERF[1:]:
        y = k.fma(y, t, k.const(x.type, coefficient))
    far = k.const(x.type, 1.0) - y * t * k.exp(-(size * size))
    return k.select(x < 0.0, -far, far)


def activate(target: Any, kind: str) -> Kernel:
    return _elementwise_kernel(f"activate_{kind}", lambda k, x: emit_activation(k, x, kind))


def scale(target: Any) -> Kernel:
    return _elementwise_kernel("scale", lambda k, x, factor: x * factor, "factor")


def scale_by(target: Any) -> Kernel:
    """Multiply x by the number at `factor`."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        factor = k.broadcast(k.vf, f.factor)
        with k.range(first, last) as row:
            x, out = k.at(f.x, row * f.stride), k.at(f.out, row * f.stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(k.load(k.vf, x, at) * factor, out, at)

    return Kernel("scale_by", parse_fields("x:p factor:p out:p stride:i vectors:i"), body)


def xielu(target: Any) -> Kernel:
    """Apply xIELU with the learned numbers at `alpha_p` and so on."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        raw_p, raw_n, beta, eps = (k.broadcast(k.vf, p) for p in (f.alpha_p, f.alpha_n, f.beta, f.eps))
        alpha_p, alpha_n = softplus(k, raw_p), beta + softplus(k, raw_n)
        with k.range(first, last) as row:
            x, out = k.at(f.x, row * f.stride), k.at(f.out, row * f.stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                value = k.load(k.vf, x, at)
                below = k.exp(k.select(value < eps, value, eps)) - 1.0 - value
                curved = k.select(value > 0.0, alpha_p * value * value, alpha_n * below)
                k.store(k.fma(beta, value, curved), out, at)

    return Kernel("xielu", parse_fields("x:p alpha_p:p alpha_n:p beta:p eps:p out:p stride:i vectors:i"), body)


def clip(target: Any) -> Kernel:
    def bounded(k: Builder, x: Val, limit: Val) -> Val:  # NaN stays
        x = k.select(x > limit, limit, x)
        return k.select(x < -limit, -limit, x)

    return _elementwise_kernel("clip", bounded, "limit")


def softcap(target: Any) -> Kernel:
    return _elementwise_kernel("softcap", lambda k, x, cap: cap * k.tanh(x / cap), "cap")


def activate_mul(target: Any, kind: str) -> Kernel:
    """Return activate(x) * y."""
    return _elementwise_kernel(f"activate_mul_{kind}", lambda k, x, y: emit_activation(k, x, kind) * y, second=True)


def _elementwise_kernel(name: str, combine: Callable[..., Val], *numbers: str, second: bool = False) -> Kernel:
    """Apply `combine` to each vector, optionally to that of a second value, and to f32 fields."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row:
            values = [k.at(p, row * f.stride) for p in ((f.x, f.y) if second else (f.x,))]
            out, given = k.at(f.out, row * f.stride), [k.splat(getattr(f, number)) for number in numbers]
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(combine(k, *(k.load(k.vf, value, at) for value in values), *given), out, at)

    text = f"x:p {'y:p ' if second else ''}out:p stride:i vectors:i"
    return Kernel(name, parse_fields(" ".join([text, *(f"{number}:f" for number in numbers)])), body)
