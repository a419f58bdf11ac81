"""Counts of vectors that kernels keep on the stack."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit import Kernel, emit_assembly_for
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.cross_attention import cross_attention
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.kernels.many_token_linear import linear_many
from sporelm.backends.cpu.kernels.paged_attention import AttentionShape, attention_split
from sporelm.backends.cpu.kernels.quantize_rows import quantize_rows
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, linear_few, linear_one
from sporelm.backends.cpu.targets.x86 import Avx512Vnni, AvxVnni, GenericX86
from unit.backends.cpu.other_machines import AVX2_TARGET, LINUX_X86

# a whole vector to or from the stack, by the width of the target's vectors
SPILL = {
    bits: re.compile(rf"^.*\(%rsp.*%{register}.*$|^.*%{register}.*\(%rsp.*$", re.MULTILINE)
    for bits, register in ((512, "zmm"), (256, "ymm"))
}


BITS = {"avx512-vnni": 512, "avx-vnni": 256, "avx2": 256}


# Each target on a CPU that is always the same one, wherever the tests run: LLVM chooses and orders instructions for it.
MADE_FOR = {each.name: each for each in (Avx512Vnni(cpu="znver4"), AvxVnni(cpu="znver4"), AVX2_TARGET, GenericX86())}


# Vectors that go to the stack and back, by target and kernel: rewritten by make_spills.py, which tells what
# changed. Fewer are welcome, more must be meant.
KNOWN: dict[str, dict[str, int]] = json.loads(Path(__file__).with_name("spills.json").read_text("utf-8"))


HEADS = (AttentionShape(KvPages(64, "f16"), 3), AttentionShape(KvPages(26, "f32"), 3))


def hot(target: Any) -> Iterator[Kernel]:
    """Products of every format, alone, grouped as query, key and value, and gated; attention; rounding."""
    for kind in FORMATS.values():
        panels = kind(target)
        for shape in (LinearShape(panels), LinearShape(panels, 3), LinearShape(panels, 2, gate="silu")):
            for kernel in (linear_one, linear_few, linear_many):
                yield kernel(target, shape)
    for heads in HEADS:
        yield attention_split(target, heads)
        yield attention_tile(target, heads)
    yield cross_attention(target, 64)
    yield quantize_rows(target, "int8/32")
    yield quantize_rows(target, "int8/256")


def assembly_of(target: str, name: str) -> str:
    """Assembly text of the kernel `name` for a target."""
    kernel = next(kernel for kernel in hot(MADE_FOR[target]) if kernel.name == name)
    return emit_assembly_for(kernel, MADE_FOR[target], LINUX_X86)
