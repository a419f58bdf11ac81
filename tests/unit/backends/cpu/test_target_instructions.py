"""Products compiled for other CPUs: their own dot instruction, and none of a larger CPU."""

import re
from functools import cache
from typing import Any

import pytest

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels
from sporelm.backends.cpu.jit import emit_assembly_for
from sporelm.backends.cpu.kernels.many_token_linear import linear_many
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, linear_few, linear_one
from sporelm.backends.cpu.targets.arm import Neon, NeonDotprod, NeonI8mm
from unit.backends.cpu.other_machines import (
    AMX,
    ANDROID,
    APPLE_M1,
    AVX2_TARGET,
    AVX512_VNNI,
    AVX_VNNI,
    LINUX_ARM,
    LINUX_X86,
    MACOS_ARM,
    WINDOWS,
)

BUCKET_KERNELS = {"one": linear_one, "few": linear_few, "many": linear_many}
EVEX = r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])|%k[0-7]|\{1to"  # registers and operands that AVX-512 alone has
SMLAL, SDOT, SMMLA = r"\bsmlal2?(?:\.8h)?\b", r"\bsdot(?:\.4s)?\b", r"\bsmmla(?:\.4s)?\b"

# target: (triple, target, its dot instruction, by which step_buckets it is used, what it must not use)
TARGETS: dict[str, tuple[str, Any, str, tuple[str, ...], str]] = {
    "avx2": (LINUX_X86, AVX2_TARGET, r"vpmaddubsw", ("one", "few", "many"), rf"vpdp|{EVEX}"),
    "avx-vnni": (WINDOWS, AVX_VNNI, r"\{vex\}\s+vpdpbusd.*%ymm", ("one", "few", "many"), rf"vpmaddubsw|{EVEX}"),
    "avx512-vnni": (LINUX_X86, AVX512_VNNI, r"vpdpbusd.*%zmm", ("one", "few", "many"), r"vpmaddubsw|tmm"),
    "amx": (LINUX_X86, AMX, r"tdpbsud", ("many",), r"vpmaddubsw"),
    "neon": (ANDROID, Neon(), SMLAL, ("one", "few", "many"), rf"{SDOT}|{SMMLA}"),
    "neon-dotprod": (MACOS_ARM, APPLE_M1, SDOT, ("one", "few", "many"), SMMLA),
    "neon-dotprod on Linux": (LINUX_ARM, NeonDotprod(), SDOT, ("one", "few", "many"), SMMLA),
    "neon-i8mm": (LINUX_ARM, NeonI8mm(), SMMLA, ("few", "many"), r"\bz\d+\.[bs]\b"),
}
FIRST = {("avx2", "Q4_0"), ("avx-vnni", "Q8_0"), ("amx", "Q4_0"), ("neon-dotprod", "Q4_0"), ("neon-i8mm", "Q8_0")}


@cache
def assembly(name: str, form: str, bucket: str) -> str:
    triple, target, *_ = TARGETS[name]
    return emit_assembly_for(BUCKET_KERNELS[bucket](target, LinearShape(FORMATS[form](target))), target, triple)


def cases() -> list[Any]:
    """Every target, format and bucket; by default a handful."""
    return [
        pytest.param(
            name,
            form,
            bucket,
            marks=() if (name, form) in FIRST and bucket in ("few", "many") else pytest.mark.all,
        )
        for name in TARGETS
        for form in FORMATS
        for bucket in BUCKET_KERNELS
    ]


@pytest.mark.parametrize(("name", "form", "bucket"), cases())
def test_products_use_what_the_target_has(name: str, form: str, bucket: str) -> None:
    _, target, dot, step_buckets, foreign = TARGETS[name]
    text = assembly(name, form, bucket)
    is_wide = form in target.tiles.wide and bucket != "one"
    if is_wide:
        assert "vpmaddwd" in text
    wanted = issubclass(FORMATS[form], IntegerPanels) and bucket in step_buckets and not is_wide
    assert bool(re.search(dot, text)) == wanted, f"{target.name} {form}: {dot}"
    assert not re.search(foreign, text), re.findall(rf".*(?:{foreign}).*", text)[:3]


def test_tiles_are_configured_before_they_are_used() -> None:
    text = assembly("amx", "Q4_0", "many")
    assert text.index("ldtilecfg") < text.index("tileloadd") < text.index("tdpbsud") < text.index("tilestored")


def test_one_token_goes_without_pairs_or_tiles() -> None:
    assert re.search(SDOT, assembly("neon-i8mm", "Q8_0", "one"))
    assert "vpdpbusd" in assembly("amx", "Q8_0", "one")
    assert "tmm" not in assembly("amx", "Q8_0", "few")
