"""Kernels: a name, the fields of a descriptor, and the Python function that is traced."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from llvmlite import ir

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.ssa_values import Val, f32, i64, pointer


class KernelField(NamedTuple):
    """One 8-byte field of a descriptor: "p" a pointer, "i" an i64, "f" an f32, "c" a pointer to an i64 that each call
    reads."""

    name: str
    kind: str


class Traceable(Protocol):
    """Code that the compiler can trace into a module, under a unique name."""

    @property
    def name(self) -> str: ...

    def build(self, module: ir.Module, target: Any) -> None: ...


@dataclass(frozen=True)
class Kernel:
    """Code for a range of items: `body(k, fields, first, last, scratch)` runs once to trace it.

    `name` identifies the kernel and everything it is specialised on: kernels of the same name have the same code. The
    native function takes (descriptor, first item, last item, the thread's scratch memory).
    """

    name: str
    fields: tuple[KernelField, ...]
    body: Callable[..., None]
    scratch: int = 0  # bytes that each thread must offer

    def build(self, module: ir.Module, target: Any) -> None:
        """Trace the body into `module`."""
        parameters = {"desc": pointer, "first": i64, "last": i64, "scratch": pointer}
        k = Builder(module, self.name, parameters, target)
        desc = k.arguments["desc"]
        values: dict[str, Val] = {}
        for index, (name, kind) in enumerate(self.fields):
            if kind in "pc":
                values[name] = k.load_pointer(desc, 8 * index)
                if kind == "c":
                    values[name] = k.load(i64, values[name])
            else:
                values[name] = k.load(i64 if kind == "i" else f32, desc, 8 * index)
        self.body(k, FieldValues(values), k.arguments["first"], k.arguments["last"], k.arguments["scratch"])
        k.finish()


class FieldValues:
    """A kernel's descriptor fields as attributes."""

    def __init__(self, values: dict[str, Val]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Val:
        raise AttributeError(f"the descriptor has no field {name}")


@cache
def parse_fields(text: str) -> tuple[KernelField, ...]:
    """Parse fields from "x:p width:i eps:f tokens:c"."""
    pairs = (word.partition(":") for word in text.split())
    return tuple(KernelField(name, kind) for name, _, kind in pairs)
