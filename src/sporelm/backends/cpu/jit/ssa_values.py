"""Values of the kernel language: SSA values with operators, and variables that LLVM keeps in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir

if TYPE_CHECKING:
    from sporelm.backends.cpu.jit.builder import Builder

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()
pointer = ir.PointerType()
Number = int | float


def vec(element: Any, lanes: int) -> Any:
    """Return the vector type of `lanes` elements."""
    return ir.VectorType(element, lanes)


def element_of(kind: Any) -> Any:
    """Return the element of a vector type; a scalar type is its own."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def is_float(kind: Any) -> bool:
    return isinstance(element_of(kind), ir.FloatType | ir.HalfType)


def nbytes(kind: Any) -> int:
    """Return the bytes of a value of this type in memory."""
    element = element_of(kind)
    bits = element.width if isinstance(element, ir.IntType) else {ir.HalfType: 16, ir.FloatType: 32}[type(element)]
    return int(bits * (kind.count if isinstance(kind, ir.VectorType) else 1) // 8)


class Val:
    """An SSA value. Operators emit instructions; integers are signed, `>>` is logical."""

    __slots__ = ("k", "raw")

    def __init__(self, k: Builder, raw: Any) -> None:
        self.k, self.raw = k, raw

    @property
    def type(self) -> Any:
        return self.raw.type

    def _other(self, other: Val | Number) -> Any:
        return other.raw if isinstance(other, Val) else self.k.const(self.type, other).raw

    def _emit(self, other: Val | Number, integer: str, real: str | None = None) -> Val:
        name = real if real is not None and is_float(self.type) else integer
        return Val(self.k, getattr(self.k.ir, name)(self.raw, self._other(other)))

    def __add__(self, other: Val | Number) -> Val:
        return self._emit(other, "add", "fadd")

    def __sub__(self, other: Val | Number) -> Val:
        return self._emit(other, "sub", "fsub")

    def __mul__(self, other: Val | Number) -> Val:
        return self._emit(other, "mul", "fmul")

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Val | Number) -> Val:
        return self._emit(other, "sdiv", "fdiv")

    def __floordiv__(self, other: Val | Number) -> Val:
        return self._emit(other, "udiv")

    def __mod__(self, other: Val | Number) -> Val:
        return self._emit(other, "urem")

    def __and__(self, other: Val | Number) -> Val:
        return self._emit(other, "and_")

    def __or__(self, other: Val | Number) -> Val:
        return self._emit(other, "or_")

    def __xor__(self, other: Val | Number) -> Val:
        return self._emit(other, "xor")

    def __lshift__(self, other: Val | Number) -> Val:
        return self._emit(other, "shl")

    def __rshift__(self, other: Val | Number) -> Val:
        return self._emit(other, "lshr")

    def arithmetic_shift(self, bits: int) -> Val:
        """Shift right, copying the sign."""
        return self._emit(bits, "ashr")

    def __neg__(self) -> Val:
        return Val(self.k, self.k.ir.fneg(self.raw)) if is_float(self.type) else self.k.const(self.type, 0) - self

    def _compare(self, sign: str, other: Val | Number) -> Val:
        compare = self.k.ir.fcmp_ordered if is_float(self.type) else self.k.ir.icmp_signed
        return Val(self.k, compare(sign, self.raw, self._other(other)))

    def __lt__(self, other: Val | Number) -> Val:
        return self._compare("<", other)

    def __le__(self, other: Val | Number) -> Val:
        return self._compare("<=", other)

    def __gt__(self, other: Val | Number) -> Val:
        return self._compare(">", other)

    def __ge__(self, other: Val | Number) -> Val:
        return self._compare(">=", other)

    def equals(self, other: Val | Number) -> Val:
        return self._compare("==", other)

    def differs(self, other: Val | Number) -> Val:
        return self._compare("!=", other)

    def is_nan(self) -> Val:
        return Val(self.k, self.k.ir.fcmp_unordered("uno", self.raw, self.raw))

    def bits(self, kind: Any) -> Val:
        """Reinterpret the bits as another type of equal size."""
        return Val(self.k, self.k.ir.bitcast(self.raw, kind))

    def zext(self, kind: Any) -> Val:
        return Val(self.k, self.k.ir.zext(self.raw, kind))

    def sext(self, kind: Any) -> Val:
        return Val(self.k, self.k.ir.sext(self.raw, kind))

    def trunc(self, kind: Any) -> Val:
        return Val(self.k, self.k.ir.trunc(self.raw, kind))

    def to_float(self) -> Val:
        """Convert a signed integer to f32."""
        kind = vec(f32, self.type.count) if isinstance(self.type, ir.VectorType) else f32
        return Val(self.k, self.k.ir.sitofp(self.raw, kind))

    def to_int(self) -> Val:
        """Convert a float to i32, rounded toward zero; any number where it does not fit."""
        kind = vec(i32, self.type.count) if isinstance(self.type, ir.VectorType) else i32
        return Val(self.k, self.k.ir.fptosi(self.raw, kind))

    def lane(self, index: int | Val) -> Val:
        """Return one element of a vector."""
        where = index.raw if isinstance(index, Val) else ir.Constant(i32, index)
        return Val(self.k, self.k.ir.extract_element(self.raw, where))


class Var:
    """A mutable local; LLVM promotes it to a register."""

    __slots__ = ("k", "slot", "type")

    def __init__(self, k: Builder, initial: Val) -> None:
        self.k, self.type = k, initial.type
        with k.ir.goto_entry_block():
            self.slot = k.ir.alloca(initial.type)
        self.set(initial)

    @property
    def value(self) -> Val:
        return Val(self.k, self.k.ir.load(self.slot, typ=self.type))

    def set(self, value: Val) -> None:
        self.k.ir.store(value.raw, self.slot)


class StoredVector:
    """A vector in memory, aligned to its size, in place of a `Var`."""

    __slots__ = ("address", "k", "type")

    def __init__(self, k: Builder, kind: Any, address: Val) -> None:
        self.k, self.type, self.address = k, kind, address

    @property
    def value(self) -> Val:
        return self.k.load(self.type, self.address, align=nbytes(self.type))

    def set(self, value: Val) -> None:
        self.k.store(value, self.address, align=nbytes(self.type))
