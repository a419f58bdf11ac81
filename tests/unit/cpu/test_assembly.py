"""What the hot kernels compile to: no vector spills, the integer dot instruction, and nothing that the target lacks."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.jit.cache import ObjectCache
from sporelm.backends.cpu.kernels.attention import Heads, attention_split
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.linear import Shape, linear_few, linear_one
from sporelm.backends.cpu.kernels.linear_many import linear_many
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.backends.cpu.kernels.quantize import quantize_rows
from sporelm.backends.cpu.targets.x86 import Avx512Vnni

SPILL = re.compile(r"^.*\(%rsp.*%zmm.*$|^.*%zmm.*\(%rsp.*$", re.MULTILINE)  # a whole vector to or from the stack
HEADS = (Heads(Pages(64, "f16"), 3), Heads(Pages(26, "f32"), 3))
CONSTANT = (
    3  # one constant of the softmax is kept on the stack and read once a page: a page is thousands of instructions
)
ALLOWED = {
    "attention_split_64_f16_3": CONSTANT,
    "attention_split_26_f32_3": CONSTANT + 1,  # and one vector of scores waits, once a page
    "attention_tile_64_f16_3": CONSTANT,
    "attention_tile_26_f32_3": CONSTANT,
    # two scaled sums wait while the other half of the tile is multiplied, once a block of 32 columns
    "linear_many_q4_1_2_gated": 4,
    # sums of gate wait while up is multiplied, once a tile, not once a block
    "linear_few_q8_0_2_gated": 8,
}


def hot(target: Any) -> Iterator[Kernel]:
    """Products of every format, alone, grouped as query, key and value, and gated; attention; rounding."""
    for kind in FORMATS.values():
        panels = kind(target)
        for shape in (Shape(panels), Shape(panels, 3), Shape(panels, 2, gated=True)):
            for kernel in (linear_one, linear_few, linear_many):
                yield kernel(target, shape)
    for heads in HEADS:
        yield attention_split(target, heads)
        yield attention_tile(target, heads)
    yield quantize_rows(target, "int8/32")
    yield quantize_rows(target, "int8/256")


def named(target: str) -> list[str]:
    """Names of the hot kernels; they are the same on every target."""
    return [kernel.name for kernel in hot(Avx512Vnni() if target != "generic" else targets.Target())]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Assembly text of the kernel `name` for a target; skips where the CPU cannot run it."""
    objects = ObjectCache(tmp_path_factory.mktemp("kernels"))
    return cache(lambda target, name: assembly_of(objects, target, name))


def assembly_of(objects: ObjectCache, target: str, name: str) -> str:
    found = targets.available().get(target)
    if found is None:
        pytest.skip(f"this CPU cannot run target {target}")
    kernel = next(kernel for kernel in hot(found) if kernel.name == name)
    return Compiler(found, objects).assembly(kernel)


@pytest.mark.parametrize("name", named("avx512-vnni"))
def test_hot_kernels_do_not_spill_vectors(assembly: Callable[[str, str], str], name: str) -> None:
    spills = SPILL.findall(assembly("avx512-vnni", name))
    assert len(spills) <= ALLOWED.get(name, 0), f"{len(spills)} spills in {name}: {spills[:4]}"


@pytest.mark.parametrize("name", [name for name in named("avx512-vnni") if name.startswith("linear")])
def test_integer_products_use_the_dot_instruction(assembly: Callable[[str, str], str], name: str) -> None:
    text = assembly("avx512-vnni", name)
    assert ("vpdpbusd" in text) == ("_q" in name)
    assert "vfmadd" in text
    assert "zmm" in text


def test_every_allowance_is_of_a_hot_kernel() -> None:
    assert ALLOWED.keys() <= set(named("avx512-vnni"))


def test_the_search_finds_spills() -> None:
    spills = ["vmovups %zmm3, 64(%rsp)", "vmovaps -128(%rsp), %zmm1", "vfmadd213ps (%rsp), %zmm1, %zmm2"]
    others = ["vmovups 64(%rsi), %zmm2", "vaddps %zmm1, %zmm2, %zmm3", "movq %rax, 8(%rsp)"]
    assert SPILL.findall("\n".join([*spills, *others])) == spills


@pytest.mark.parametrize(
    "name", ["linear_one_q4_1_1", "linear_many_q8_0_1", "linear_few_f16_1", "attention_tile_64_f16_3"]
)
def test_the_generic_target_uses_what_every_cpu_has(assembly: Callable[[str, str], str], name: str) -> None:
    """No AVX registers, no fused instructions: what it calls for them is arithmetic, or a library function."""
    text = assembly("generic", name)
    assert not re.search(r"%[yz]mm\d", text)
    assert not re.search(r"\bv(?:pdpbusd|fmadd|cvtph2ps|cvtps2ph)", text)
    assert "%xmm" in text
