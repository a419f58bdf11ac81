"""The builder that a kernel receives: memory, arithmetic, loops.

A Python `for` and a Python list unroll, which gives register tiles. `with k.range(n) as i` is a loop at run time.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite
from llvmlite import ir

from sporelm.backends.cpu.jit.ssa_values import (
    Number,
    Val,
    Var,
    element_of,
    f32,
    i8,
    i32,
    i64,
    is_float,
    nbytes,
    pointer,
    vec,
)
from sporelm.errors import BackendError

Offset = Val | int
ROUND = 12582912.0  # 1.5 * 2**23: adding and subtracting it rounds |x| < 2**22 to the nearest integer, ties to even


class Builder:
    """Emits one function. `target` supplies the differences between CPUs."""

    def __init__(self, module: ir.Module, name: str, parameters: dict[str, Any], target: Any) -> None:
        self.module, self.target, self.lanes = module, target, target.lanes
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), list(parameters.values())), name)
        _add_attributes(self.function, "nounwind", f'"prefer-vector-width"="{target.lanes * 32}"')
        self.ir = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.arguments = dict(zip(parameters, (Val(self, arg) for arg in self.function.args), strict=True))
        self.vi, self.vf = vec(i32, self.lanes), vec(f32, self.lanes)

    def finish(self) -> None:
        if not self.ir.block.is_terminated:
            self.ir.ret_void()

    def align_stack(self) -> None:
        """Align the stack to vectors, which takes a register.

        Otherwise LLVM spills to addresses aligned to 16 bytes only, which differ from one process to the next, and
        half of the spilled vectors may cross cache lines.
        """
        _add_attributes(self.function, '"stackrealign"')

    # ---- constants and variables

    def const(self, kind: Any, value: Number) -> Val:
        """Return a constant. A vector type repeats it in every lane."""
        element = element_of(kind)
        number = float(value) if is_float(kind) else int(value)
        if isinstance(kind, ir.VectorType):
            return Val(self, ir.Constant(kind, [ir.Constant(element, number)] * kind.count))
        return Val(self, ir.Constant(kind, number))

    def constants(self, element: Any, values: Sequence[Number]) -> Val:
        """Return a constant vector of these numbers."""
        return Val(self, ir.Constant(vec(element, len(values)), [ir.Constant(element, value) for value in values]))

    def iota(self, kind: Any) -> Val:
        """Return 0, 1, 2, ... in the lanes of an integer vector type."""
        return Val(self, ir.Constant(kind, [ir.Constant(kind.element, lane) for lane in range(kind.count)]))

    def index(self, value: Offset) -> Val:
        return value if isinstance(value, Val) else self.const(i64, value)

    def var(self, initial: Val) -> Var:
        return Var(self, initial)

    def zero(self, kind: Any) -> Var:
        return Var(self, self.const(kind, 0))

    # ---- memory

    def at(self, base: Val, offset: Offset) -> Val:
        """Return the address `offset` bytes past `base`."""
        if isinstance(offset, int) and offset == 0:
            return base
        return Val(self, self.ir.gep(base.raw, [self.index(offset).raw], source_etype=i8))

    def address_of(self, place: Val) -> Val:
        """Return a pointer as i64."""
        return Val(self, self.ir.ptrtoint(place.raw, i64))

    def pointer_to(self, address: Val) -> Val:
        """Return the pointer whose address an i64 holds."""
        return Val(self, self.ir.inttoptr(address.raw, pointer))

    def distance(self, start: Val, end: Val) -> Val:
        """Return the bytes from one address to another."""
        return Val(self, self.ir.sub(self.ir.ptrtoint(end.raw, i64), self.ir.ptrtoint(start.raw, i64)))

    def load(self, kind: Any, base: Val, offset: Offset = 0, align: int | None = None) -> Val:
        """Load from `base + offset` bytes; aligned to the element unless `align` says better."""
        address = self.at(base, offset).raw
        return Val(self, self.ir.load(address, align=align or nbytes(element_of(kind)), typ=kind))

    def store(self, value: Val, base: Val, offset: Offset = 0, align: int | None = None) -> None:
        self.ir.store(value.raw, self.at(base, offset).raw, align=align or nbytes(element_of(value.type)))

    def store_past_caches(self, value: Val, base: Val, offset: Offset = 0) -> None:
        """Store a vector, at a multiple of its size, in memory instead of a cache: no later load of this core needs it.

        Other threads may see it before or after other stores, unless `fence` comes between them.
        """
        stored = self.ir.store(value.raw, self.at(base, offset).raw, align=nbytes(value.type))
        stored.set_metadata("nontemporal", self.module.add_metadata([ir.Constant(i32, 1)]))

    def fence(self) -> None:
        """Let all loads and stores before this point take effect before the later ones, for all threads."""
        self.ir.fence("seq_cst")

    def load_pointer(self, base: Val, offset: Offset = 0) -> Val:
        return Val(self, self.ir.load(self.at(base, offset).raw, align=8, typ=pointer))

    def splat(self, value: Val, lanes: int | None = None) -> Val:
        """Return a scalar in every lane."""
        lanes = lanes or self.lanes
        undefined = ir.Constant(vec(value.type, lanes), ir.Undefined)
        single = self.ir.insert_element(undefined, value.raw, ir.Constant(i32, 0))
        return Val(self, self.ir.shuffle_vector(single, undefined, ir.Constant(vec(i32, lanes), [0] * lanes)))

    def broadcast(self, kind: Any, base: Val, offset: Offset = 0) -> Val:
        """Load one element and repeat it in every lane of `kind`."""
        return self.splat(self.load(kind.element, base, offset), kind.count)

    def vector(self, elements: list[Val]) -> Val:
        """Return a vector of these scalars."""
        whole: Any = ir.Constant(vec(elements[0].type, len(elements)), ir.Undefined)
        for lane, element in enumerate(elements):
            whole = self.ir.insert_element(whole, element.raw, ir.Constant(i32, lane))
        return Val(self, whole)

    def shuffle(self, first: Val, second: Val, lanes: list[int]) -> Val:
        """Select lanes of two concatenated vectors."""
        mask = ir.Constant(vec(i32, len(lanes)), [ir.Constant(i32, lane) for lane in lanes])
        return Val(self, self.ir.shuffle_vector(first.raw, second.raw, mask))

    def prefetch(self, base: Val, offset: Offset = 0, locality: int = 3) -> None:
        """Prefetch the cache line at `base + offset`. Any address is allowed."""
        kinds = [pointer, i32, i32, i32]
        function = self.declare("llvm.prefetch.p0", ir.VoidType(), kinds)
        self.ir.call(function, [self.at(base, offset).raw, *(ir.Constant(i32, n) for n in (0, locality, 1))])

    def opaque(self, value: Val) -> Val:
        """Return the same value, opaque to LLVM: an address stays base + displacement in an unrolled body."""
        constraint = "=v,0" if isinstance(value.type, ir.VectorType) else "=r,0"
        kind = ir.FunctionType(value.type, [value.type])
        return Val(self, self.ir.asm(kind, "", constraint, [value.raw], False))

    def keep_order(self) -> None:
        """Keep LLVM from moving loads or stores across this point. Emits nothing."""
        self.ir.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    def pin(self, rows: list[list[Val]]) -> list[list[Val]]:
        """Return the same values, computed by here: LLVM moves neither their definitions nor their uses across this
        point. Emits nothing."""
        values = [value for row in rows for value in row]
        kinds, count = [value.type for value in values], len(values)
        result = ir.LiteralStructType(kinds)
        constraint = ",".join(["=v"] * count + [str(n) for n in range(count)] + ["~{memory}"])
        if count == 1:
            result = kinds[0]
        found = self.ir.asm(ir.FunctionType(result, kinds), "", constraint, [value.raw for value in values], True)
        parts = iter([found] if count == 1 else [self.ir.extract_value(found, n) for n in range(count)])
        return [[Val(self, next(parts)) for _ in row] for row in rows]

    # ---- arithmetic

    def declare(self, name: str, result: Any, kinds: list[Any]) -> Any:
        return self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(result, kinds), name)

    def intrinsic(self, name: str, result: Any, *args: Val, suffix: Any = None) -> Val:
        """Call an LLVM intrinsic, overloaded on `suffix` when one is given."""
        full = name if suffix is None else f"{name}.{_suffix(suffix)}"
        return Val(self, self.ir.call(self.declare(full, result, [a.type for a in args]), [a.raw for a in args]))

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """Return a * b + c, rounded once; twice on targets that would have to call a library for it."""
        name = "llvm.fma" if self.target.fused else "llvm.fmuladd"
        return self.intrinsic(name, a.type, a, b, c, suffix=a.type)

    def select(self, condition: Val, yes: Val, no: Val) -> Val:
        return Val(self, self.ir.select(condition.raw, yes.raw, no.raw))

    def min(self, a: Val, b: Offset) -> Val:
        other = b if isinstance(b, Val) else self.const(a.type, b)
        return self.select(a < other, a, other)

    def max(self, a: Val, b: Offset) -> Val:
        other = b if isinstance(b, Val) else self.const(a.type, b)
        return self.select(a > other, a, other)

    def fmax(self, a: Val, b: Val) -> Val:
        """Return the greater; `b` if either is NaN."""
        return self.select(a > b, a, b)

    def fabs(self, a: Val) -> Val:
        return self.intrinsic("llvm.fabs", a.type, a, suffix=a.type)

    def sqrt(self, a: Val) -> Val:
        return self.intrinsic("llvm.sqrt", a.type, a, suffix=a.type)

    def round_to_int(self, a: Val) -> tuple[Val, Val]:
        """Return the nearest integer, ties to even, as float and i32; |a| must be below 2**22. NaN gives NaN and any
        integer."""
        shifted = a + ROUND
        kind = vec(i32, a.type.count) if isinstance(a.type, ir.VectorType) else i32
        return shifted - ROUND, shifted.bits(kind) - 0x4B400000

    def exp(self, x: Val) -> Val:
        """Return e**x within 2.5e-7 of its value, x clamped to -87..88; NaN gives NaN. Cephes' range reduction,
        degree 6."""
        x = self.select(x < -87.0, self.const(x.type, -87.0), x)
        x = self.select(x > 88.0, self.const(x.type, 88.0), x)
        n, whole = self.round_to_int(x * 1.44269504)
        r = self.fma(n, self.const(x.type, 2.12194440e-4), self.fma(n, self.const(x.type, -0.693359375), x))
        y = self.const(x.type, 1 / 720)
        for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            y = self.fma(y, r, self.const(x.type, coefficient))
        return y * ((whole + 127) << 23).bits(x.type)

    def tanh(self, x: Val) -> Val:
        """Return tanh(x) within 3e-7 of its value; NaN gives NaN. Near 0 by Cephes' polynomial, else by e**2x."""
        size = self.fabs(x)
        far = self.const(x.type, 1.0) - self.const(x.type, 2.0) / (self.exp(size * 2.0) + 1.0)
        square = x * x
        y = self.const(x.type, -5.70498872745e-3)
        for coefficient in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
            y = self.fma(y, square, self.const(x.type, coefficient))
        signed = self.select(x < 0.0, -far, far)
        return self.select(size < 0.625, self.fma(y * square, x, x), signed)

    def fold(self, vector: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """Reduce a vector to a scalar by halves: one order on every target of this width."""
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            low = self.shuffle(vector, vector, list(range(lanes)))
            high = self.shuffle(vector, vector, list(range(lanes, 2 * lanes)))
            vector = combine(low, high)
        return vector.lane(0)

    def sum(self, vector: Val) -> Val:
        return self.fold(vector, lambda a, b: a + b)

    # ---- control

    @contextlib.contextmanager
    def range(self, start: Offset, stop: Offset | None = None, step: Offset = 1) -> Iterator[Val]:
        """Loop at run time over i64."""
        first, last = (self.index(0), self.index(start)) if stop is None else (self.index(start), self.index(stop))
        before = self.ir.block
        head, body, end = (self.function.append_basic_block(name) for name in ("loop", "body", "end"))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.phi(i64)
        index.add_incoming(first.raw, before)
        self.ir.cbranch(self.ir.icmp_signed("<", index, last.raw), body, end)
        self.ir.position_at_end(body)
        yield Val(self, index)
        index.add_incoming(self.ir.add(index, self.index(step).raw, flags=("nsw",)), self.ir.block)
        self.ir.branch(head)
        self.ir.position_at_end(end)

    @contextlib.contextmanager
    def when(self, condition: Val) -> Iterator[None]:
        with self.ir.if_then(condition.raw):
            yield

    @contextlib.contextmanager
    def loop_while(self, condition: Callable[[], Val]) -> Iterator[None]:
        """Repeat while `condition()`, evaluated before each turn."""
        head, body, end = (self.function.append_basic_block(name) for name in ("while", "do", "done"))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        self.ir.cbranch(condition().raw, body, end)
        self.ir.position_at_end(body)
        yield
        self.ir.branch(head)
        self.ir.position_at_end(end)

    def both(self, first: Val, second: Callable[[], Val]) -> Val:
        """Return whether both hold. The second is evaluated only if the first holds."""
        result = self.var(self.const(ir.IntType(1), 0))
        with self.when(first):
            result.set(second())
        return result.value

    # ---- atomics, for the thread pool

    def atomic_load(self, base: Val, offset: Offset = 0, order: str = "acquire") -> Val:
        return Val(self, self.ir.load_atomic(self.at(base, offset).raw, order, 8, typ=i64))

    def atomic_store(self, value: Val, base: Val, offset: Offset = 0) -> None:
        """Store an i64 with release ordering: a thread that loads it with acquire sees all earlier stores."""
        place = self.ir.inttoptr(
            self.address_of(self.at(base, offset)).raw, i64.as_pointer()
        )  # llvmlite requires a typed pointer
        self.ir.store_atomic(value.raw, place, "release", 8)

    def atomic(self, operation: str, base: Val, offset: Offset, value: Offset, order: str = "acq_rel") -> Val:
        """Read-modify-write an i64, and return its previous value. `operation`: add, sub, xchg."""
        return Val(self, self.ir.atomic_rmw(operation, self.at(base, offset).raw, self.index(value).raw, order))

    def compare_exchange(self, base: Val, offset: Offset, expected: Offset, new: Offset, order: str = "acq_rel") -> Val:
        """Replace the i64 by `new` if it is `expected`. Return whether it was."""
        address, failure = self.at(base, offset).raw, "acquire" if order == "acq_rel" else order
        pair = self.ir.cmpxchg(address, self.index(expected).raw, self.index(new).raw, order, failure)
        return Val(self, self.ir.extract_value(pair, 1))

    def call_address(self, address: Val, *args: Val) -> None:
        """Call a native function without a result by its address."""
        kind = ir.FunctionType(ir.VoidType(), [a.type for a in args])
        self.ir.call(self.ir.inttoptr(address.raw, kind.as_pointer()), [a.raw for a in args])


def _add_attributes(function: Any, *wanted: str) -> None:
    """Add attributes to a function, also those unknown to llvmlite. Raise BackendError where that fails."""
    attributes = function.attributes
    known = getattr(attributes, "_known", None)
    if not isinstance(known, frozenset):
        raise BackendError(f"llvmlite {llvmlite.__version__} is newer than this back-end: install 'llvmlite<0.51'")
    attributes._known = known | set(wanted)  # old name: llvmlite's
    for attribute in wanted:
        attributes.add(attribute)


def _suffix(kind: Any) -> str:
    """Return a type as LLVM writes it in the name of an overloaded intrinsic."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    return {ir.HalfType: "f16", ir.FloatType: "f32"}.get(type(kind)) or str(kind)
