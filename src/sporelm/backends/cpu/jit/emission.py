"""Kernels to machine code: trace, optimise, emit; for the CPU at hand or, to look at it, for any other machine."""

import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from sporelm.backends.cpu.jit.kernel import Traceable


@cache
def native_triple() -> str:
    """This machine as LLVM writes it: CPU, vendor, system. On Windows with ELF objects, as MCJIT loads them best."""
    triple: str = llvm.get_default_triple()
    return triple + "-elf" if sys.platform == "win32" and not triple.endswith("-elf") else triple


@cache
def _initialize(native: bool) -> None:
    """Make LLVM's code generators known, the native one alone or all of them."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def machine_of(target: Any, triple: str | None = None) -> Any:
    """LLVM's target machine for a Target (its CPU and features) on this system, or on that of `triple`."""
    native = triple is None
    _initialize(native)
    found = llvm.Target.from_triple(native_triple() if triple is None else triple)
    return found.create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small", jit=native
    )


def optimised(kernel: Traceable, target: Any, machine: Any) -> Any:
    """The kernel's module, traced for `target` and optimised for `machine`."""
    module = ir.Module(kernel.name)
    kernel.build(module, target)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def object_for(kernel: Traceable, target: Any, triple: str) -> bytes:
    """Object code of a kernel for another machine, such as "aarch64-linux-android"."""
    machine = machine_of(target, triple)
    code: bytes = machine.emit_object(optimised(kernel, target, machine))
    return code


def assembly_for(kernel: Traceable, target: Any, triple: str) -> str:
    """Assembly text of a kernel for another machine."""
    machine = machine_of(target, triple)
    text: str = machine.emit_assembly(optimised(kernel, target, machine))
    return text
