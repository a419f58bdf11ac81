"""The AMX kernels, their tile instructions replaced by loops of the same meaning: equal to AVX-512 VNNI bit by bit.

No machine with AMX has run the instructions themselves; that they are emitted is seen in test_targets_instructions.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.cpu import CpuBackend, targets
from sporelm.backends.cpu import cpu_backend as cpu_backend
from sporelm.backends.cpu.formats import FORMATS as PANELS
from sporelm.backends.cpu.jit import Builder, Compiler, Val, i8, i32
from sporelm.backends.cpu.targets.amx import Amx
from sporelm.backends.file_cache import ObjectCache
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor


class Replaced(Amx):
    """TDPBSUD as the manual writes it down."""

    def product(self, k: Builder, tokens: int, width: int, activations: Val, weights: Val, out: Val) -> None:
        with k.range(tokens) as m, k.range(16) as n:
            total = k.var(k.const(i32, 0))
            with k.range(width) as byte:
                signed = k.load(i8, activations, m * width + byte).sext(i32)
                plain = k.load(i8, weights, byte // 4 * 64 + n * 4 + byte % 4).zext(i32)
                total.set(total.value + signed * plain)
            k.store(total.value, out, m * 64 + n * 4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuBackend, CpuBackend]]:
    """AVX-512 VNNI, and AMX with its product replaced."""
    best = targets.available_targets().get("avx512-vnni")
    if best is None:
        pytest.skip("the AMX target needs AVX-512 VNNI beside its tiles, which this CPU lacks")
    tiles = Replaced(cpu=best.cpu, features=best.features)
    objects = ObjectCache(tmp_path_factory.mktemp("kernels"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_backend.targets, "select_target", lambda name: best if name == best.name else tiles)
        patch.setattr(cpu_backend, "Compiler", partial(Compiler, cache=objects))
        backends = CpuBackend(threads=2, target=best.name), CpuBackend(threads=2, target=tiles.name)
    yield backends
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("form", ["Q4_0", *(pytest.param(f, marks=pytest.mark.all) for f in PANELS if f != "Q4_0")])
@pytest.mark.parametrize("tokens", [1, 17, 133])
def test_tiles_multiply_like_dot_products(pair: tuple[CpuBackend, CpuBackend], form: str, tokens: int) -> None:
    random = np.random.default_rng(tokens)
    matrix = random.standard_normal((50, 512), np.float32)
    weight = StoredTensor("w", FORMATS[form], matrix.shape, quantize_tensor(FORMATS[form], matrix).reshape(-1))
    x = random.standard_normal((tokens, 512), np.float32)
    known, found = (ops.linear(b.tensor(x), b.pack(weight)).numpy() for b in pair)
    assert np.array_equal(known, found)
    gated = [ops.linear_silu_mul(b.tensor(x), b.pack(weight), b.pack(weight)).numpy() for b in pair]
    assert np.array_equal(*gated)


def test_the_replacement_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the comparison above would say nothing."""
    from sporelm.backends.cpu.jit import emit_assembly_for
    from sporelm.backends.cpu.kernels.many_token_linear import linear_many
    from sporelm.backends.cpu.kernels.quantized_linear import LinearShape
    from unit.backends.cpu.other_machines import AMX, LINUX_X86

    calls: list[Any] = []
    monkeypatch.setattr(Amx, "product", lambda self, *args: calls.append(args[1:3]))
    emit_assembly_for(linear_many(AMX, LinearShape(PANELS["Q6_K"](AMX))), AMX, LINUX_X86)
    assert calls == [(8, 16), (8, 16)]
