"""What the hot kernels compile to: no vector spills, the integer dot instruction, and nothing that the target lacks."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels, Panels, SuperPanels
from sporelm.backends.cpu.jit import Kernel, assembly_for
from sporelm.backends.cpu.kernels.attention import Heads, attention_split
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.linear import Shape, linear_few, linear_one
from sporelm.backends.cpu.kernels.linear_many import linear_many
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.backends.cpu.kernels.quantize import quantize_rows
from sporelm.backends.cpu.targets.x86 import Avx512Vnni, AvxVnni, GenericX86
from unit.cpu.elsewhere import AVX2_TARGET, LINUX_X86

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
HEADS = (Heads(Pages(64, "f16"), 3), Heads(Pages(26, "f32"), 3))


def hot(target: Any) -> Iterator[Kernel]:
    """Products of every format, alone, grouped as query, key and value, and gated; attention; rounding."""
    for kind in FORMATS.values():
        panels = kind(target)
        for shape in (Shape(panels), Shape(panels, 3), Shape(panels, 2, gate="silu")):
            for kernel in (linear_one, linear_few, linear_many):
                yield kernel(target, shape)
    for heads in HEADS:
        yield attention_split(target, heads)
        yield attention_tile(target, heads)
    yield quantize_rows(target, "int8/32")
    yield quantize_rows(target, "int8/256")


def named() -> list[str]:
    """Names of the hot kernels; they are the same on every target."""
    return [kernel.name for kernel in hot(Avx512Vnni())]


def on_targets() -> list[Any]:
    """(target, name): most on the best target, some formats on the others, the rest of them with --all."""
    some = re.compile(r"linear_\w+_(q4_0|q8_0|q4_k)_1|attention_\w+_64|quantize")
    alike = re.compile(r"_(tq2_0|iq1_m|iq2_\w+|iq3_\w+)_\d")  # as other formats, but packed from other blocks
    found = []
    for target in BITS:
        for name in named():
            rare = alike.search(name) or (target != "avx512-vnni" and not some.match(name))
            found.append(pytest.param(target, name, id=f"{target}-{name}", marks=[pytest.mark.all] if rare else []))
    return found


def assembly_of(target: str, name: str) -> str:
    """Assembly text of the kernel `name` for a target."""
    kernel = next(kernel for kernel in hot(MADE_FOR[target]) if kernel.name == name)
    return assembly_for(kernel, MADE_FOR[target], LINUX_X86)


def format_of(kernel: str) -> type[Panels]:
    """The format of a product's kernel."""
    found = re.fullmatch(r"linear_[a-z]+_(\w+?)_\d(?:_[a-z]+)?", kernel)
    assert found
    return FORMATS[found[1].upper()]


DOTS = {"avx512-vnni": "vpdpbusd", "avx-vnni": "vpdpbusd", "avx2": "vpmaddubsw"}
PAIRS = {"avx512-vnni": "vpdpwssd", "avx-vnni": "vpdpwssd", "avx2": "vpmaddwd"}


@pytest.mark.parametrize(("target", "name"), on_targets())
def test_hot_kernels_do_not_spill_and_use_the_dot_instruction(target: str, name: str) -> None:
    """Both of one compilation, which is what takes its time."""
    text = assembly_of(target, name)
    spills, allowed = SPILL[BITS[target]].findall(text), KNOWN[target].get(name, 0)
    assert len(spills) <= allowed, f"{len(spills)} spills in {name}, {allowed} are known: {spills[:4]}"
    if name.startswith("linear"):
        check_product(text, target, format_of(name))


def check_product(text: str, target: str, kind: type[Panels]) -> None:
    """Integer products have the target's dot instruction, the others none; all of them its widest vectors."""
    assert (DOTS[target] in text) == issubclass(kind, IntegerPanels)
    if issubclass(kind, SuperPanels):
        assert PAIRS[target] in text
    assert "vfmadd" in text
    assert ("zmm" in text) == (target == "avx512-vnni")


def test_avx2_alone_is_what_avx2_kernels_need() -> None:
    """No instruction of AVX-512 or AVX-VNNI, and no register past the sixteenth."""
    for name in ("linear_few_q4_k_1", "linear_many_q8_0_1", "linear_one_f16_1"):
        text = assembly_of("avx2", name)
        assert not re.search(r"\bvpdp|%zmm|%[xy]mm(?:1[6-9]|[23]\d)|%k[0-7]", text)


@pytest.mark.parametrize("target", BITS)
def test_every_allowance_is_of_a_hot_kernel(target: str) -> None:
    assert KNOWN[target].keys() <= set(named())


def test_the_search_finds_spills() -> None:
    spills = ["vmovups %zmm3, 64(%rsp)", "vmovaps -128(%rsp), %zmm1", "vfmadd213ps (%rsp), %zmm1, %zmm2"]
    others = ["vmovups 64(%rsi), %zmm2", "vaddps %zmm1, %zmm2, %zmm3", "movq %rax, 8(%rsp)"]
    assert SPILL[512].findall("\n".join([*spills, *others])) == spills
    narrow = [line.replace("zmm", "ymm") for line in [*spills, *others]]
    assert SPILL[256].findall("\n".join(narrow)) == narrow[:3]


@pytest.mark.parametrize(
    "name", ["linear_one_q4_1_1", "linear_many_q8_0_1", "linear_few_f16_1", "attention_tile_64_f16_3"]
)
def test_the_generic_target_uses_what_every_cpu_has(name: str) -> None:
    """No AVX registers, no fused instructions: what it calls for them is arithmetic, or a library function."""
    text = assembly_of("generic", name)
    assert not re.search(r"%[yz]mm\d", text)
    assert not re.search(r"\bv(?:pdpbusd|fmadd|cvtph2ps|cvtps2ph)", text)
    assert "%xmm" in text
