"""The kernel language: operators, loops, variables, reductions, exp, rounding, half precision; on every target."""

from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu.jit import Compiler, Kernel, f32, i8, i16, i32, i64, vec
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.runtime.run_kernel import run_kernel
from sporelm.backends.cpu.targets.cpu_target import SIGNED
from unit.backends.cpu.sample_kernels import apply, run_body, run_on

random = np.random.default_rng(0)
X, Y = (random.standard_normal(100, np.float32) * 10 for _ in range(2))
# the least and the greatest with one operand of each sign: wrapping, not trapping
WHOLE = np.concatenate([random.integers(-(2**31), 2**31, 98), [-(2**31), 2**31 - 1]]).astype(np.int32)
J = random.integers(1, 1000, 100).astype(np.int32)


def binary(name: str) -> Any:
    return lambda k, a, b: getattr(a, name)(b)


FLOATS = {"__add__": X + Y, "__sub__": X - Y, "__mul__": X * Y, "__truediv__": X / Y}
INTEGERS = {
    "__add__": WHOLE + J,
    "__sub__": WHOLE - J,
    "__mul__": WHOLE * J,
    "__and__": WHOLE & J,
    "__or__": WHOLE | J,
    "__xor__": WHOLE ^ J,
    "__floordiv__": (WHOLE.view(np.uint32) // J.view(np.uint32)).view(np.int32),
    "__mod__": (WHOLE.view(np.uint32) % J.view(np.uint32)).view(np.int32),
    "__truediv__": np.trunc(WHOLE / J).astype(np.int32),
}


@pytest.mark.parametrize("name", FLOATS)
def test_float_operators(compiler: Compiler, name: str) -> None:
    assert np.array_equal(apply(compiler, binary(name), X, Y, out="float32"), FLOATS[name])


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_operators(compiler: Compiler, name: str, scalar: bool) -> None:
    assert np.array_equal(apply(compiler, binary(name), WHOLE, J, out="int32", scalar=scalar), INTEGERS[name])


def test_shifts_and_constants(compiler: Compiler) -> None:
    logical = (WHOLE.view(np.uint32) >> 3).view(np.int32)
    assert np.array_equal(apply(compiler, lambda k, a: a >> 3, WHOLE, out="int32"), logical)
    assert np.array_equal(apply(compiler, lambda k, a: a.arithmetic_shift(3), WHOLE, out="int32"), WHOLE >> 3)
    assert np.array_equal(apply(compiler, lambda k, a: a << 5, WHOLE, out="int32"), WHOLE << 5)
    assert np.array_equal(apply(compiler, lambda k, a: -a, WHOLE, out="int32"), -WHOLE)
    assert np.array_equal(
        apply(compiler, lambda k, a: 2.5 * a + 1.5, X, out="float32"), np.float32(2.5) * X + np.float32(1.5)
    )


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__gt__", "__ge__"])
def test_comparisons(compiler: Compiler, name: str) -> None:
    """Ordered: NaN compares false."""
    x, y = X.copy(), Y.copy()
    x[:10] = y[:10]
    x[10:20], y[15:25] = np.nan, np.nan

    def choose(k: Any, a: Any, b: Any) -> Any:
        return k.select(getattr(a, name)(b), k.const(k.vi, 1), k.const(k.vi, 0))

    assert np.array_equal(apply(compiler, choose, x, y, out="int32"), getattr(x, name)(y))
    assert np.array_equal(apply(compiler, choose, WHOLE, J, out="int32"), getattr(WHOLE, name)(J))


def test_equality_and_nan(compiler: Compiler) -> None:
    x = np.array([1, np.nan, -0.0, np.inf], np.float32)
    y = np.array([1, np.nan, 0.0, -np.inf], np.float32)

    def flags(k: Any, condition: Any) -> Any:
        return k.select(condition, k.const(i32, 1), k.const(i32, 0))

    found = [
        apply(compiler, lambda k, a, b, ask=ask: flags(k, ask(a, b)), x, y, out="int32", scalar=True).tolist()
        for ask in (lambda a, b: a.equals(b), lambda a, b: a.differs(b), lambda a, b: a.is_nan())
    ]
    assert found == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]


def test_conversions(compiler: Compiler) -> None:
    lanes = compiler.target.lanes
    small = random.integers(-128, 128, 64).astype(np.int8)
    wide = vec(i32, lanes)
    assert np.array_equal(apply(compiler, lambda k, a: a.sext(wide), small, out="int32"), small.astype(np.int32))
    assert np.array_equal(apply(compiler, lambda k, a: a.zext(wide), small, out="int32"), small.view(np.uint8))
    assert np.array_equal(
        apply(compiler, lambda k, a: a.trunc(vec(i8, lanes)), WHOLE, out="int8"), WHOLE.astype(np.int8)
    )
    assert np.array_equal(apply(compiler, lambda k, a: a.to_float(), WHOLE, out="float32"), WHOLE.astype(np.float32))
    assert np.array_equal(apply(compiler, lambda k, a: a.bits(k.vi), X, out="int32"), X.view(np.int32))


def test_arithmetic_functions(compiler: Compiler) -> None:
    once, twice = (X.astype(np.float64) * Y + 1).astype(np.float32), X * Y + np.float32(1)
    exact = once if compiler.target.fused else twice
    assert np.array_equal(apply(compiler, lambda k, a, b: k.fma(a, b, k.const(k.vf, 1)), X, Y, out="float32"), exact)
    assert np.array_equal(apply(compiler, lambda k, a: k.sqrt(k.fabs(a)), X, out="float32"), np.sqrt(np.abs(X)))
    assert np.array_equal(apply(compiler, lambda k, a, b: k.max(a, b), WHOLE, J, out="int32"), np.maximum(WHOLE, J))
    assert np.array_equal(apply(compiler, lambda k, a: k.min(a, 5), WHOLE, out="int32"), np.minimum(WHOLE, 5))
    nan = X.copy()
    nan[::3] = np.nan
    assert np.array_equal(
        apply(compiler, lambda k, a, b: k.fmax(a, b), nan, Y, out="float32"), np.where(nan > Y, nan, Y)
    )


def test_exp_is_as_exact_as_it_says(compiler: Compiler) -> None:
    x = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1, 1, 100_001), [0.0, -0.0]]).astype(np.float32)
    found = apply(compiler, lambda k, a: k.exp(a), x, out="float32").astype(np.float64)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(found / exact - 1).max() < 2.5e-7
    assert (found[x == 0] == 1).all(), "a running softmax relies on it"


def test_tanh_is_as_exact_as_it_says(compiler: Compiler) -> None:
    x = np.concatenate([np.linspace(-12, 12, 40_001), [0, 1e-30, -1e-7, 0.625, 1e4, np.inf, -np.inf]], dtype=np.float32)
    found = apply(compiler, lambda k, a: k.tanh(a), x, out="float32").astype(np.float64)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(found - exact) <= 3e-7 * np.abs(exact)).all()
    assert np.isnan(apply(compiler, lambda k, a: k.tanh(a), np.full(16, np.nan, np.float32), out="float32")).all()


def test_exp_of_what_lies_outside(compiler: Compiler) -> None:
    x = np.array([-np.inf, -1e30, -88, 89, 1e30, np.inf, np.nan], np.float32)
    found = apply(compiler, lambda k, a: k.exp(a), x, out="float32")
    ends = np.exp(np.array([-87, 88], np.float64))
    assert np.allclose(found[:3], ends[0], rtol=1e-6, atol=0)
    assert np.allclose(found[3:6], ends[1], rtol=1e-6)
    assert np.isnan(found[6])


def test_rounding_takes_ties_to_even(compiler: Compiler) -> None:
    x = np.concatenate([np.arange(-300, 300) / 2, random.uniform(-4e6, 4e6, 1000), [0.49999997, -0.49999997]])
    x = x.astype(np.float32)
    assert np.array_equal(apply(compiler, lambda k, a: k.round_to_int(a)[0], x, out="float32"), np.rint(x))
    assert np.array_equal(
        apply(compiler, lambda k, a: k.round_to_int(a)[1], x, out="int32"), np.rint(x).astype(np.int32)
    )


@pytest.mark.parametrize("scalar", [False, True])
def test_every_half_is_widened_exactly(compiler: Compiler, scalar: bool) -> None:
    bits = np.arange(65536).astype(np.uint16).view(np.int16)
    found = apply(compiler, lambda k, a: k.target.from_half(k, a), bits, out="float32", scalar=scalar)
    exact = bits.view(np.float16).astype(np.float32)
    nan = np.isnan(exact)
    assert np.isnan(found[nan]).all()
    assert np.array_equal(found[~nan].view(np.uint32), exact[~nan].view(np.uint32)), "signs of zeros are kept"


@pytest.mark.parametrize("scalar", [False, True])
def test_floats_are_narrowed_like_ieee(compiler: Compiler, scalar: bool) -> None:
    """Every half, the ties between neighbours, and floats of random bits: NaN, infinity and subnormals among them."""
    halves = np.arange(65536).astype(np.uint16).view(np.float16).astype(np.float32)
    finite = np.unique(halves[np.isfinite(halves)])
    ties = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(sign * np.inf), dtype=np.float32) for sign in (-1, 1)]
    anything = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    limits = np.array([65504, 65519.996, 65520, -65520, 1e30, np.inf, -np.inf, 2.0**-25, 2.0**-26, 1e-45], np.float32)
    x = np.concatenate([halves, ties, *beside, anything, limits]).astype(np.float32)
    found = apply(compiler, lambda k, a: k.target.to_half(k, a), x, out="int16", scalar=scalar).view(np.uint16)
    with np.errstate(over="ignore"):
        exact = x.astype(np.float16)
    nan = np.isnan(x)
    assert np.isnan(found[nan].view(np.float16)).all()
    assert np.array_equal(found[~nan], exact[~nan].view(np.uint16))


# (greatest magnitude of a weight byte, what the bytes are): the kinds there are in panels
KINDS = {"four bits": 15, "five bits": 31, "six bits": 63, "bytes": 255, "signed": SIGNED}


def weight_bytes(largest: int, shape: tuple[int, ...]) -> np.ndarray:
    """Random weight bytes, many of them the ends of their range, as int64."""
    low, high = (-128, 127) if largest == SIGNED else (0, largest)
    ends = random.integers(0, 2, shape) * (high - low) + low
    return np.where(random.random(shape) < 0.5, ends, random.integers(low, high + 1, shape))


def skip_unless_packed(compiler: Compiler, largest: int) -> None:
    """Signed bytes are packed with 128 added, or as they are."""
    moved = compiler.target.signed_zero == 128
    if largest == (SIGNED if moved else 255):
        pytest.skip(f"{compiler.target.name} packs signed bytes {'with 128 added' if moved else 'as they are'}")


@pytest.mark.parametrize("ends", ["random", "all the largest", "the largest of both signs"])
@pytest.mark.parametrize("kind", KINDS)
def test_multiply_sums_products_of_bytes_exactly(compiler: Compiler, kind: str, ends: str) -> None:
    """Any number of words, tokens and panels; -128 of a weight, and sums as large as can be: nothing saturates."""
    largest, lanes = KINDS[kind], compiler.target.lanes
    skip_unless_packed(compiler, largest)
    for words, tokens, panels in ((8, 1, 1), (8, 3, 2), (4, 2, 1), (1, 1, 1), (9, 1, 1), (64, 1, 2)):
        weights = weight_bytes(largest, (panels, words, lanes, 4))
        x = random.integers(-127, 128, (tokens, words, 4))
        if ends != "random":
            weights[:] = -128 if largest == SIGNED else largest
            x[:] = 127
            x[:, ::2] = 127 if ends == "all the largest" else -127
        starts = random.integers(-1000, 1000, (tokens, panels, lanes)).astype(np.int32)
        packed, rows = weights.astype(np.uint8).view(np.int32)[..., 0].copy(), x.astype(np.int8)
        found = np.zeros((tokens, panels, lanes), np.int32)

        def body(k: Any, f: Any, out: Any, words: int = words, tokens: int = tokens, panels: int = panels) -> None:
            def word(number: int) -> list[Any]:
                return [k.load(k.vi, f.weights, 4 * lanes * (words * p + number)) for p in range(panels)]

            def vector(base: Any, t: int, p: int) -> tuple[Any, int]:
                return base, 4 * lanes * (panels * t + p)

            totals = [[k.load(k.vi, *vector(f.starts, t, p)) for p in range(panels)] for t in range(tokens)]
            each = [k.at(f.x, 4 * words * t) for t in range(tokens)]
            for t, row in enumerate(k.target.multiply(k, word, words, each, totals, largest)):
                for p, value in enumerate(row):
                    k.store(value, *vector(out, t, p))

        run_on(compiler, body, found, weights=packed, starts=starts, x=rows)
        products = np.einsum("pwlb,twb->tpl", weights, x) + starts
        assert np.array_equal(found, products.astype(np.int32)), f"{words} words, {tokens} tokens, {panels} panels"


@pytest.mark.parametrize("kind", KINDS)
def test_dot_multiplies_unsigned_or_signed_by_signed_bytes(compiler: Compiler, kind: str) -> None:
    """The one instruction, or the arithmetic in its place, of targets that sum words one by one."""
    largest = KINDS[kind]
    skip_unless_packed(compiler, largest)
    if compiler.target.name == "avx2":
        pytest.skip(f"{compiler.target.name} does not multiply such bytes one word at a time")
    weights, x = weight_bytes(largest, (160, 4)), random.integers(-128, 128, (160, 4))
    weights[:2], x[:2] = largest if largest != SIGNED else -128, -128
    starts = np.resize(J, 160)
    arrays = (starts, weights.astype(np.uint8).view(np.int32)[:, 0], x.astype(np.int8).view(np.int32)[:, 0])
    found = apply(compiler, lambda k, t, w, a: k.target.dot(k, t, w, a, largest), *arrays, out="int32")
    assert np.array_equal(found, starts + (weights * x).sum(axis=1))


def test_dot_pairs_multiplies_halves_of_words(compiler: Compiler) -> None:
    """Sums of 32 activations are at most 4064; minima and scales at most 128 either way."""
    left, right = random.integers(-128, 128, (160, 2)), random.integers(-4064, 4065, (160, 2))
    left[:4], right[:2], right[2:4] = -128, 4064, -4064
    arrays = (np.resize(WHOLE // 4, 160), *(side.astype(np.int16).view(np.int32)[:, 0] for side in (left, right)))
    found = apply(compiler, lambda k, t, a, b: k.target.dot_pairs(k, t, a, b), *arrays, out="int32")
    assert np.array_equal(found, arrays[0] + (left * right).sum(axis=1).astype(np.int32))


@pytest.mark.parametrize("scalar", [False, True])
def test_lookup_picks_bytes_of_a_table(compiler: Compiler, scalar: bool) -> None:
    """Vectors by the target's instruction, other sizes by arithmetic; bytes with and without a sign."""
    table = [-128, 127, 0, 255, 1, -1, 128, 77, 0, -99, 200, 2, 3, 4, 5, 6]
    indices = random.integers(0, 16, (100, 4)).astype(np.uint8)
    found = apply(
        compiler, lambda k, a: k.target.lookup(k, table, a), indices.view(np.int32)[:, 0], out="int32", scalar=scalar
    )
    assert np.array_equal(found.view(np.uint8).reshape(-1, 4), np.array(table).astype(np.uint8)[indices])


def test_loops_and_variables(compiler: Compiler) -> None:
    """Sum of i * j over i in range(start, stop, step), j in range(i): nested loops that may not turn at all."""

    def body(k: Any, f: Any, out: Any) -> None:
        total = k.zero(i64)
        with k.range(f.start, f.stop, f.step) as i, k.range(i) as j:
            total.set(total.value + i * j)
        k.store(total.value, out)

    for start, stop, step in ((0, 10, 1), (3, 20, 4), (5, 5, 1), (7, 2, 1), (-3, 2, 2)):
        found = run_body(compiler, body, np.full(1, -1, np.int64), start=start, stop=stop, step=step)
        assert found[0] == sum(i * j for i in range(start, stop, step) for j in range(i))


def test_while_and_when(compiler: Compiler) -> None:
    """Steps of the Collatz sequence from n to 1."""

    def body(k: Any, f: Any, out: Any) -> None:
        n, steps = k.var(f.n), k.zero(i64)
        with k.loop_while(lambda: n.value > 1):
            odd = (n.value & 1).equals(1)
            n.set(k.select(odd, n.value * 3 + 1, n.value >> 1))
            steps.set(steps.value + 1)
        k.store(steps.value, out)
        with k.when(f.n > 5):
            k.store(k.index(1), out, 8)

    for n, steps, large in ((1, 0, 0), (5, 5, 0), (27, 111, 1)):
        assert run_body(compiler, body, np.zeros(2, np.int64), n=n).tolist() == [steps, large]


def test_fold_reduces_by_halves(compiler: Compiler) -> None:
    lanes = compiler.target.lanes
    x = random.standard_normal(lanes, np.float32) * np.float32(1e4)
    halves = x
    while len(halves) > 1:
        halves = halves[: len(halves) // 2] + halves[len(halves) // 2 :]
    assert apply(compiler, lambda k, a: k.splat(k.sum(a)), x, out="float32")[0] == halves[0]
    assert apply(compiler, lambda k, a: k.splat(k.fold(a, k.fmax)), x, out="float32")[0] == x.max()


def test_moving_lanes(compiler: Compiler) -> None:
    lanes = compiler.target.lanes
    count = 100 // lanes * lanes
    x, y = X[:count].reshape(-1, lanes), Y[:count].reshape(-1, lanes)
    order = [*range(1, lanes), lanes]  # all but the first of a, then the first of b
    found = apply(compiler, lambda k, a, b: k.shuffle(a, b, order), X[:count], Y[:count], out="float32")
    assert np.array_equal(found.reshape(-1, lanes), np.concatenate([x[:, 1:], y[:, :1]], axis=1))
    reverse = apply(
        compiler, lambda k, a: k.vector([a.lane(n) for n in reversed(range(lanes))]), X[:count], out="float32"
    )
    assert np.array_equal(reverse.reshape(-1, lanes), x[:, ::-1])
    numbered = apply(compiler, lambda k, a: k.iota(k.vi), WHOLE, out="int32")
    assert np.array_equal(numbered, np.arange(100) % lanes)
    opaque = apply(compiler, lambda k, a: k.opaque(a), X, out="float32")
    assert np.array_equal(opaque, X)


def test_loads_of_any_alignment(compiler: Compiler) -> None:
    source = random.integers(0, 256, 64).astype(np.uint8)
    target = np.zeros(64, np.uint8)

    def body(k: Any, f: Any, out: Any) -> None:
        with k.range(10) as at:
            k.store(k.load(i32, k.at(out, f.delta), at * 5 + 1, align=1), out, at * 5 + 1, align=1)

    run_body(compiler, body, target, delta=source.ctypes.data - target.ctypes.data)
    expected = np.zeros(64, np.uint8)
    for at in range(1, 51, 5):
        expected[at : at + 4] = source[at : at + 4]
    assert np.array_equal(target, expected)


def test_fields_of_every_kind(compiler: Compiler) -> None:
    """A pointer, an integer, a float, and a cell, which is read when the kernel runs."""
    cell, out = np.array([41], np.int64), np.zeros(3, np.int64)

    def body(k: Any, f: Any, first: Any, last: Any, scratch: Any) -> None:
        k.store(f.i + first, f.out)
        k.store(f.f * 2.0, f.out, 8)
        k.store(f.c + 1, f.out, 16)

    kernel = Kernel("test_fields", parse_fields("out:p i:i f:f c:c"), body)
    given = {"out": out.ctypes.data, "i": -7, "f": int(np.float32(1.25).view(np.int32)), "c": cell.ctypes.data}
    run_kernel(compiler, kernel, given, 1)
    assert (out[0], out[1:2].view(np.float32)[0], out[2]) == (-7, 2.5, 42)
    cell[0] = 99
    run_kernel(compiler, kernel, given, 1)
    assert out[2] == 100


def test_an_unknown_field_is_named(compiler: Compiler) -> None:
    with pytest.raises(AttributeError, match="no field wrong"):
        run_body(compiler, lambda k, f, out: k.store(f.wrong, out), np.zeros(1, np.int64))


def test_atomics(compiler: Compiler) -> None:
    def body(k: Any, f: Any, out: Any) -> None:
        before = k.atomic("add", out, 0, 5)
        k.store(before, out, 8)
        won = k.compare_exchange(out, 0, 15, 1)
        lost = k.compare_exchange(out, 0, 15, 2)
        k.store(k.select(won, k.index(1), k.index(0)) + k.select(lost, k.index(10), k.index(0)), out, 16)
        k.store(k.atomic_load(out), out, 24)

    assert run_body(compiler, body, np.array([10, 0, 0, 0], np.int64)).tolist() == [1, 10, 1, 1]


def test_types_know_their_size() -> None:
    from sporelm.backends.cpu.jit.ssa_values import nbytes

    assert [nbytes(kind) for kind in (i8, i16, i32, i64, f32, vec(f32, 16), vec(i8, 64))] == [1, 2, 4, 8, 4, 64, 64]
