"""Emission of machine code: trace, optimize, emit; for the CPU at hand or, for inspection, for another machine."""

import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from sporelm.backends.cpu.jit.kernel import Traceable
from sporelm.backends.cpu.jit.ssa_values import i64, pointer


@cache
def native_triple() -> str:
    """Return this machine as LLVM writes it: CPU, vendor, system. On Windows with ELF objects, as MCJIT loads them
    best."""
    triple: str = llvm.get_default_triple()
    return triple + "-elf" if sys.platform == "win32" and not triple.endswith("-elf") else triple


@cache
def _initialize(native: bool) -> None:
    """Initialize LLVM's code generators, the native one or all of them."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def target_machine(target: Any, triple: str | None = None) -> Any:
    """Return LLVM's target machine for a CpuTarget (its CPU and features) on this system, or on that of `triple`."""
    native = triple is None
    _initialize(native)
    found = llvm.Target.from_triple(native_triple() if triple is None else triple)
    return found.create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small", jit=native
    )


def optimize(kernel: Traceable, target: Any, machine: Any) -> Any:
    """Return the kernel's module, traced for `target` and optimized for `machine`."""
    module = ir.Module(kernel.name)
    kernel.build(module, target)
    if machine.triple.startswith("x86_64"):
        _add_writable_page(module)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def _add_writable_page(module: ir.Module) -> None:
    """Add a writable number to a module for x86, so that LLVM's loader reserves a page of writable memory.

    The loader reserves memory for an object in one piece (`Compiler`). It does not count the addresses of foreign
    functions, such as `memset` and `__chkstk`, which it writes to that page.
    """
    number = ir.GlobalVariable(module, i64, "writable_page")
    number.linkage, number.initializer = "internal", ir.Constant(i64, 0)
    kept = ir.GlobalVariable(module, ir.ArrayType(pointer, 1), "llvm.compiler.used")
    kept.linkage, kept.section = "appending", "llvm.metadata"
    kept.initializer = ir.Constant(kept.value_type, [number.bitcast(pointer)])


def emit_object_for(kernel: Traceable, target: Any, triple: str) -> bytes:
    """Return object code of a kernel for another machine, such as "aarch64-linux-android"."""
    machine = target_machine(target, triple)
    code: bytes = machine.emit_object(optimize(kernel, target, machine))
    return code


def emit_assembly_for(kernel: Traceable, target: Any, triple: str) -> str:
    """Return assembly text of a kernel for another machine."""
    machine = target_machine(target, triple)
    text: str = machine.emit_assembly(optimize(kernel, target, machine))
    return text
