"""Kernels for other systems: every kernel of a model is emitted, and expects nothing that its system does not have."""

import re
from pathlib import Path
from typing import Any

import pytest

from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit import emit_assembly_for, emit_object_for
from sporelm.backends.cpu.jit.emission import native_triple
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.cross_attention import cross_attention, span_tiles
from sporelm.backends.cpu.kernels.encoder_attention import encoder_attention, text_pages
from sporelm.backends.cpu.kernels.image_rows import image_rows
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.kernels.many_token_linear import linear_many
from sporelm.backends.cpu.kernels.mean_rows import mean_rows
from sporelm.backends.cpu.kernels.paged_attention import attention_split
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, linear_one
from sporelm.backends.cpu.kernels.rotary_embedding import RotaryShape, rope_store
from sporelm.backends.cpu.targets.arm import Neon
from sporelm.backends.cpu.targets.x86 import GenericX86
from unit.backends.cpu.other_machines import (
    AVX2_TARGET,
    LINUX_ARM,
    LINUX_X86,
    MACHINES,
    MACOS_ARM,
    MACOS_X86,
    WINDOWS,
    WINDOWS_COFF,
    kernels_of_llama,
    symbols,
)
from unit.backends.cpu.system_symbols import expected

FORMS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16", "Q5_1", "IQ4_NL", "Q3_K", "TQ1_0", "IQ4_XS")


def machines() -> list[Any]:
    return [
        pytest.param(
            triple,
            target,
            form,
            id=f"{triple}-{target.name}-{form}",
            marks=() if number < 2 and form == "Q4_0" else pytest.mark.all,
        )
        for number, (triple, target) in enumerate(MACHINES)
        for form in FORMS
    ]


@pytest.mark.parametrize(("triple", "target", "form"), machines())
def test_every_kernel_of_a_llama_is_emitted(triple: str, target: Any, form: str, tmp_path: Path) -> None:
    kernels = kernels_of_llama(tmp_path, target, form)
    assert {"rms_norm", "argmax", f"pack_{form.lower()}", f"linear_many_{form.lower()}_1"} <= kernels.keys()
    assert any(name.startswith("attention_tile") for name in kernels)
    for name, kernel in kernels.items():
        found = symbols(emit_object_for(kernel, target, triple))
        assert name in found.defined
        assert found.undefined <= expected(triple), f"{name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        pytest.param(*machine[:2], marks=() if number < 2 else pytest.mark.all)
        for number, machine in enumerate(MACHINES[:6])
    ],
)
def test_kernels_of_a_rounded_cache_are_emitted(triple: str, target: Any, tmp_path: Path) -> None:
    kernels = kernels_of_llama(tmp_path, target, "Q4_0", kv="q8_0")
    chosen = {name: kernel for name, kernel in kernels.items() if "Q8_0" in name}
    assert {name.split("_")[0] for name in chosen} == {"attention", "rope"}
    for name, kernel in chosen.items():
        found = symbols(emit_object_for(kernel, target, triple))
        assert found.undefined <= expected(triple), f"{name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        pytest.param(*machine[:2], marks=() if number < 2 else pytest.mark.all)
        for number, machine in enumerate(MACHINES[:7])
    ],
)
def test_kernels_of_linear_biases_and_of_streams_are_emitted(triple: str, target: Any) -> None:
    pages = KvPages(32, "f16")
    turns = RotaryShape(32, 32, "half", (0, 1, 2) * 5 + (0,)), RotaryShape(32, 32, "halves", (0,) * 8 + (1,) * 8)
    split = attention_split(target, AttentionShape(pages, 1, slopes=True))
    for kernel in (split, *(rope_store(target, pages, turn) for turn in turns)):
        found = symbols(emit_object_for(kernel, target, triple))
        assert kernel.name in found.defined
        assert found.undefined <= expected(triple), f"{kernel.name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        pytest.param(*machine[:2], marks=() if number < 2 else pytest.mark.all)
        for number, machine in enumerate(MACHINES[:7])
    ],
)
def test_kernels_of_images_are_emitted(triple: str, target: Any) -> None:
    for kv in ("f16", "q8_0"):
        kernel = attention_tile(target, AttentionShape(KvPages(32, kv), 2, spans=True))
        found = symbols(emit_object_for(kernel, target, triple))
        assert kernel.name in found.defined
        assert found.undefined <= expected(triple), f"{kernel.name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        pytest.param(*machine[:2], marks=() if number < 2 else pytest.mark.all)
        for number, machine in enumerate(MACHINES[:7])
    ],
)
def test_kernels_of_whole_texts_are_emitted(triple: str, target: Any) -> None:
    heads = AttentionShape(KvPages(32, "f32"), 2)
    windows = (encoder_attention(target, heads, windowed=windowed) for windowed in (False, True))
    biased = encoder_attention(target, AttentionShape(KvPages(32, "f32"), 2, biases=True), windowed=False)
    apart = encoder_attention(target, AttentionShape(KvPages(32, "f32"), 1, disentangled=True), windowed=False)
    for kernel in (text_pages(target, heads), *windows, biased, apart, mean_rows(target)):
        found = symbols(emit_object_for(kernel, target, triple))
        assert kernel.name in found.defined
        assert found.undefined <= expected(triple), f"{kernel.name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        pytest.param(*machine[:2], marks=() if number < 2 else pytest.mark.all)
        for number, machine in enumerate(MACHINES[:7])
    ],
)
def test_kernels_of_pictures_are_emitted(triple: str, target: Any) -> None:
    placing = (image_rows(target, adds=adds) for adds in (False, True))
    for kernel in (span_tiles(target), cross_attention(target, 72), *placing):
        found = symbols(emit_object_for(kernel, target, triple))
        assert kernel.name in found.defined
        assert found.undefined <= expected(triple), f"{kernel.name} asks for {found.undefined}"


@pytest.mark.parametrize(
    ("triple", "target", "magic"),
    [
        (WINDOWS, AVX2_TARGET, b"\x7fELF\x02"),
        (WINDOWS_COFF, AVX2_TARGET, b"\x64\x86"),
        (MACOS_X86, AVX2_TARGET, b"\xcf\xfa\xed\xfe\x07\x00\x00\x01"),
        (MACOS_ARM, Neon(), b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"),
        (LINUX_ARM, Neon(), b"\x7fELF\x02"),
    ],
)
def test_objects_are_of_the_system(triple: str, target: Any, magic: bytes) -> None:
    kernel = linear_one(target, LinearShape(FORMATS["Q8_0"](target)))
    code = emit_object_for(kernel, target, triple)
    assert code.startswith(magic)
    assert symbols(code).defined >= {kernel.name}


def test_symbols_that_are_missing_are_seen() -> None:
    """The readers of objects can fail: an FMA that the CPU lacks asks for fmaf in each kind of object."""
    for triple in (LINUX_X86, MACOS_X86, WINDOWS_COFF):
        target = GenericX86(fused=True)
        found = symbols(emit_object_for(linear_one(target, LinearShape(FORMATS["F32"](target))), target, triple))
        assert "fmaf" in found.undefined
        assert "linear_one_f32_1" in found.defined


def test_windows_has_a_calling_convention_of_its_own() -> None:
    """The descriptor comes in RCX, not RDI, and XMM6 to XMM15 are the caller's."""
    kernel = linear_many(AVX2_TARGET, LinearShape(FORMATS["Q4_0"](AVX2_TARGET)))
    windows, linux = (emit_assembly_for(kernel, AVX2_TARGET, triple) for triple in (WINDOWS, LINUX_X86))
    saved = r"vmov\w+\s+%xmm6, -?\d+\(%r[sb]p\)"  # RBP where the stack is aligned for spills
    assert re.search(r"movq\s+\d*\(%rcx\)", windows)
    assert re.search(saved, windows)
    assert re.search(r"movq\s+\d*\(%rdi\)", linux)
    assert not re.search(saved, linux)


def test_the_code_of_this_machine_is_elf_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    native_triple.cache_clear()
    here = native_triple()
    monkeypatch.setattr("sys.platform", "win32")
    native_triple.cache_clear()
    try:
        assert native_triple() == f"{here}-elf"
    finally:
        native_triple.cache_clear()
