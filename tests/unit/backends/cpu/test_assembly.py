"""Assembly of the hot kernels: no vector spills, the integer dot instruction, and nothing that the target lacks."""

import re
from typing import Any

import pytest

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels, Panels, SuperPanels
from sporelm.backends.cpu.kernels.panel_products import biases_runs
from sporelm.backends.cpu.targets.x86 import Avx512Vnni
from unit.backends.cpu.spill_counts import BITS, KNOWN, MADE_FOR, SPILL, assembly_of, hot


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
        is_wide = format_of(name).name in MADE_FOR[target].tiles.wide and "_one_" not in name
        check_product(text, target, format_of(name), is_wide, is_many="_many_" in name)


def check_product(text: str, target: str, kind: type[Panels], is_wide: bool, is_many: bool) -> None:
    """Integer products have the target's dot instruction, or if they are of 16 bits that of pairs, the others none; all
    of them its widest vectors. Pairs of runs' sums have the latter, except where each run's products begin with them.
    """
    assert (DOTS[target] in text) == (issubclass(kind, IntegerPanels) and not is_wide)
    if is_wide:
        assert PAIRS[target] in text
    if issubclass(kind, SuperPanels):
        biased = is_many and biases_runs(kind(MADE_FOR[target]).for_many())
        assert (PAIRS[target] in text) == (not biased)
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
