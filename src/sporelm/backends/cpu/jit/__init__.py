"""The kernel language: a Python function is run once to trace it to LLVM IR for the CPU at hand. Object code is
cached."""

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.compiler import Compiler
from sporelm.backends.cpu.jit.emission import emit_assembly_for, emit_object_for
from sporelm.backends.cpu.jit.kernel import Kernel, KernelField
from sporelm.backends.cpu.jit.ssa_values import StoredVector, Val, Var, f16, f32, i8, i16, i32, i64, nbytes, vec

__all__ = [
    "Builder",
    "Compiler",
    "Kernel",
    "KernelField",
    "StoredVector",
    "Val",
    "Var",
    "emit_assembly_for",
    "emit_object_for",
    "f16",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "nbytes",
    "vec",
]
