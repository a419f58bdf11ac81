"""Norm kernels: machine code of five cards; wide rows and rows far from zero under Triton's interpreter."""

import numpy as np
import pytest

from sporelm import ops
from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("width", [128, 4096])
def test_norms_keep_rows_in_registers_and_read_16_bytes_at_once(card: int, width: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.norm import add_rms_norm

    x = torch.zeros(4, 4096, dtype=torch.bfloat16)
    weight = torch.ones(width)
    [launch] = record_launches(lambda: add_rms_norm(x, x.clone(), weight.expand(width), eps=1e-6))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 128
    if width == 4096:
        assert any("128" in each.split()[0] for each in code.instructions("LDG.E")), code.instructions("LDG")


@pytest.mark.parametrize("card", CARDS)
def test_layer_norms_keep_rows_in_registers(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.norm import add_layer_norm

    x, weight = torch.zeros(4, 4096, dtype=torch.bfloat16), torch.ones(4096)
    [launch] = record_launches(lambda: add_layer_norm(x, x.clone(), weight, weight.clone(), eps=1e-6))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 64
    loads = [each for each in code.instructions("LDG.E") if "128" in each.split()[0]]
    assert len(loads) == 2 + 4  # 8 numbers of x and of the residual, and of each vector of float32


@pytest.mark.parametrize("width", [9000, 96])
def test_layer_norms_far_from_zero(width: int) -> None:
    """A mean that is a thousand deviations; rows of one block, and of several."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.norm import add_layer_norm, group_norm, layer_norm

    random = np.random.default_rng(1)
    x = random.standard_normal((3, width)).astype(np.float32) + np.float32(1000)
    residual, weight, bias = (random.standard_normal(shape).astype(np.float32) for shape in (x.shape, width, width))
    given, added, *vectors = map(torch.from_numpy, (x, residual, weight, bias))
    pairs = [
        (layer_norm(given, *vectors, eps=1e-5), ops.layer_norm.reference(x, weight, bias, eps=1e-5)),
        (
            add_layer_norm(given, added, *vectors, eps=1e-5)[0],
            ops.add_layer_norm.reference(x, residual, weight, bias, eps=1e-5)[0],
        ),
        (
            group_norm(given, *vectors, group=width // 3, eps=1e-5),
            ops.group_norm.reference(x, weight, bias, group=width // 3, eps=1e-5),
        ),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=2e-6)
