"""The kernel language: a Python function, run once, becomes LLVM code for the CPU at hand; its object code is kept."""

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.compiler import Compiler
from sporelm.backends.cpu.jit.emission import assembly_for, object_for
from sporelm.backends.cpu.jit.kernel import Field, Kernel
from sporelm.backends.cpu.jit.values import Val, Var, f16, f32, i8, i16, i32, i64, nbytes, vec

__all__ = [
    "Builder",
    "Compiler",
    "Field",
    "Kernel",
    "Val",
    "Var",
    "assembly_for",
    "f16",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "nbytes",
    "object_for",
    "vec",
]
