"""Exponentials, logarithms and error functions of float32 numbers, from polynomials.

Triton's own logarithm and error function are calls of libdevice, and its exponential is only accurate near zero. Each
polynomial is a minimax fit of the function that its comment names, with an error below half a unit in the last place of
the result. `tl.fma` makes results independent of the way in which a compiler contracts products and sums.
"""

import triton
import triton.language as tl


@triton.jit
def exp_times_power(x, POWER: tl.constexpr):
    """Return exp(x) * 2^POWER, within two units in the last place, for x from -87 to 80 and results in range."""
    whole = tl.floor(x * 1.44269504 + 0.5)
    rest = tl.fma(whole, -0.693359375, x)  # log(2) in two numbers: the first product is exact
    rest = tl.fma(whole, 2.12194440e-4, rest)
    tail = tl.fma(rest, 0.00019857846, 0.001393371)  # (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2
    tail = tl.fma(rest, tail, 0.0083333608)
    tail = tl.fma(rest, tail, 0.041666463)
    tail = tl.fma(rest, tail, 0.16666667)
    tail = tl.fma(rest, tail, 0.5)
    mantissa = 1.0 + tl.fma(rest * rest, tail, rest)
    exponent = (whole.to(tl.int32) + (127 + POWER)) << 23
    return mantissa * exponent.to(tl.float32, bitcast=True)


@triton.jit
def expm1(x):
    """Return exp(x) - 1."""
    tail = tl.fma(x, 0.00019857846, 0.001393371)
    tail = tl.fma(x, tail, 0.0083333608)
    tail = tl.fma(x, tail, 0.041666463)
    tail = tl.fma(x, tail, 0.16666667)
    tail = tl.fma(x, tail, 0.5)
    return tl.where(tl.abs(x) < 0.34, tl.fma(x * x, tail, x), tl.exp(x) - 1.0)


@triton.jit
def _atanh_tail(square):
    """Return (atanh(s) / s - 1) / s^2 for s^2 = square, up to 1 / 9."""
    tail = tl.fma(square, 0.12235326, 0.10722607)
    tail = tl.fma(square, tail, 0.14304577)
    tail = tl.fma(square, tail, 0.19999686)
    return tl.fma(square, tail, 0.33333334)


@triton.jit
def log(x):
    """Return the logarithm of a positive normal number, within two units in the last place."""
    bits = x.to(tl.int32, bitcast=True) - 0x3F3504F3  # the bits of sqrt(1/2): mantissas from there to sqrt(2)
    exponent = (bits >> 23).to(tl.float32)
    mantissa = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True)
    share = tl.div_rn(mantissa - 1.0, mantissa + 1.0)
    square = share * share
    tail = tl.fma(2.0 * share, square * _atanh_tail(square), exponent * -2.12194440e-4)
    return tl.fma(exponent, 0.693359375, tl.fma(2.0, share, tail))


@triton.jit
def log1p_of_share(x):
    """Return log(1 + x) for x from 0 to 1."""
    share = x / (2.0 + x)
    square = share * share
    return 2.0 * tl.fma(share, square * _atanh_tail(square), share)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    size = tl.abs(x)
    square = size * size
    tail = tl.fma(square, 0.0023680569, -0.0084073711)  # (tanh(y) / y - 1) / y^2 for y <= 0.6
    tail = tl.fma(square, tail, 0.021787342)
    tail = tl.fma(square, tail, -0.053961396)
    tail = tl.fma(square, tail, 0.13333312)
    tail = tl.fma(square, tail, -0.33333334)
    share = tl.exp(-2.0 * size)
    result = tl.where(size < 0.6, tl.fma(size, square * tail, size), (1.0 - share) / (1.0 + share))
    return tl.where(x < 0, -result, result)


@triton.jit
def half_erfc(x):
    """Return half of the complementary error function of x >= 0."""
    u = 1.0 / (1.0 + 0.5 * x)
    tail = tl.fma(u, -0.0067536812, -0.025450272)  # exp(x^2) erfc(x) / u
    tail = tl.fma(u, tail, 0.21322566)
    tail = tl.fma(u, tail, -0.40296477)
    tail = tl.fma(u, tail, 0.21754289)
    tail = tl.fma(u, tail, 0.00057190057)
    tail = tl.fma(u, tail, 0.1951333)
    tail = tl.fma(u, tail, 0.24433386)
    tail = tl.fma(u, tail, 0.28227133)
    tail = tl.fma(u, tail, 0.28208974)
    return 0.5 * u * tail * tl.exp(-x * x)
