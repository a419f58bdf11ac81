"""Products with experts: pairs sorted into tiles, few pairs, and machine code of five cards."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import (
    SHARED_BYTES,
    compile_launch,
    on_each_card,
    record_launches,
    require_compiler,
)
from unit.backends.cuda.weights import empty_weight, pack, random_stored

MAX_TILE_STACK = 32  # bytes: the compiler spills a few numbers to fit one program more on a multiprocessor


def experts_of(weight: Any, experts: int) -> Any:
    """Return a matrix as the matrices of experts."""
    from sporelm.backends.cuda.cuda_weight import CudaWeight

    rows, width = weight.shape
    stored = weight.stored
    if not isinstance(stored, tuple):
        stored = stored.view(experts, rows // experts, width)
    return CudaWeight(stored, (experts, rows // experts, width), weight.dtype, "float")


def random_experts(torch: Any, name: str, experts: int, rows: int, width: int) -> Any:
    return experts_of(pack(random_stored(name, experts * rows, width), torch.float32), experts)


def random_rows(torch: Any, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(shape[0]).standard_normal(shape, np.float32))


@pytest.mark.parametrize(("tokens", "k", "experts", "tile"), [(1, 1, 4, 16), (50, 3, 6, 16), (700, 2, 33, 64)])
def test_pairs_are_sorted_into_tiles(torch: Any, tokens: int, k: int, experts: int, tile: int) -> None:
    from sporelm.backends.cuda.expert_tiles import sort_pairs

    drawn = np.random.default_rng(tokens).integers(0, experts, (tokens, k), np.int32) // 2 * 2  # every other is idle
    tiles = sort_pairs(torch.from_numpy(drawn), experts, tile)
    expected = np.argsort(drawn.ravel(), kind="stable")
    assert np.array_equal(tiles.order.numpy(), expected)
    used = [tuple(each) for each in tiles.places.T.tolist() if each[0] >= 0]
    counts = np.bincount(drawn.ravel(), minlength=experts)
    ends = counts.cumsum()
    assert used == [
        (expert, int(ends[expert] - counts[expert]) + start, int(ends[expert]))
        for expert in range(experts)
        for start in range(0, int(counts[expert]), tile)
    ]


def test_few_pairs_read_their_experts_rows(torch: Any) -> None:
    from sporelm.backends.cuda.linear_experts import linear_experts, linear_experts_silu_mul
    from sporelm.backends.torch.elementwise import silu_mul

    gate, up = (random_experts(torch, name, 8, 18, 512) for name in ("Q4_0", "Q4_0"))
    x, ids, bias = random_rows(torch, 2, 512) * 0.01, torch.tensor([[7, 0], [3, 7]], dtype=torch.int32), None
    bias = random_rows(torch, 8, 18)
    pairs = ids.flatten().long()
    products = (gate.values[pairs] @ x.repeat_interleave(2, dim=0)[:, :, None]).view(2, 2, 18)
    assert torch.allclose(linear_experts(x, gate, ids, bias), products + bias[pairs].view(2, 2, 18), atol=1e-5)
    found = linear_experts_silu_mul(x, gate, up, ids)
    assert torch.allclose(found, silu_mul(products, products), atol=1e-5)


@pytest.mark.parametrize("name", ["Q4_K", "F32"])
def test_rows_do_not_depend_on_other_rows_in_invariant_steps(torch: Any, name: str) -> None:
    from sporelm.backends.cuda.cuda_weight import CudaWeight
    from sporelm.backends.cuda.linear_experts import linear_experts
    from sporelm.backends.torch.step_context import STEP

    weight = random_experts(torch, "Q4_K", 4, 9, 512)
    if name == "F32":
        weight = CudaWeight(weight.values, weight.shape, torch.float32, "float")
    x = random_rows(torch, 40, 512)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (40, 2), np.int32))
    with STEP.begin(1, True):
        whole = linear_experts(x, weight, ids)
        for tokens in (1, 17):
            part = linear_experts(x[:tokens].contiguous(), weight, ids[:tokens].contiguous())
            # numpy multiplies the tiles of interpreted kernels: on some CPUs its sums depend on a row's place in them.
            assert torch.allclose(part, whole[:tokens], rtol=0, atol=1e-6 * float(whole.abs().max()))


# ---- machine code


def empty_experts(name: str, experts: int, rows: int, width: int) -> Any:
    return experts_of(empty_weight(name, experts * rows, width), experts)


def record_products(name: str, tokens: int) -> list[Any]:
    """Return the launches of the products of a mixture, one for each kernel, with 16 of its experts."""
    import torch

    from sporelm.backends.cuda.linear_experts import linear_experts, linear_experts_silu_mul

    gate, up = (empty_experts(name, 16, 768, 2048) for _ in range(2))
    down = empty_experts(name, 16, 2048, 768)
    x, ids = torch.empty(tokens, 2048, dtype=torch.bfloat16), torch.zeros(tokens, 4, dtype=torch.int32)
    inner = torch.empty(tokens, 4, 768, dtype=torch.bfloat16)
    launches = record_launches(lambda: (linear_experts_silu_mul(x, gate, up, ids), linear_experts(inner, down, ids)))
    products = {launch.options.get("KIND"): launch for launch in launches if "ROWS" in launch.options}
    return list(products.values())


@pytest.mark.parametrize(
    ("name", "card"), [*on_each_card("Q4_K"), ("Q4_0", 90), ("Q6_K", 86), ("bfloat16", 90), ("IQ4_NL", 86)]
)
def test_few_pairs_read_weights_16_bytes_at_once(name: str, card: int) -> None:
    require_compiler()
    for launch in record_products(name, 1):
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= 1 << 10  # for the last sums only
        assert code.registers <= 168
        wide = [each for each in code.instructions("LDG.E") if "128" in each.split()[0]]
        assert len(wide) >= 2, code.instructions("LDG")


@pytest.mark.parametrize(
    ("name", "tokens", "card"),
    [*on_each_card("Q4_K", 1000), ("Q6_K", 100, 86), ("Q4_0", 30, 120), ("bfloat16", 1000, 86)],
)
def test_tiles_use_tensor_cores(name: str, tokens: int, card: int) -> None:
    require_compiler()
    for launch in record_products(name, tokens):
        code = compile_launch(launch, card)
        assert code.stack_bytes <= MAX_TILE_STACK
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 255
        assert code.uses_tensor_cores
        assert any("128" in each.split()[0] for each in code.instructions("LDG") + code.instructions("LDGSTS"))
        assert len(code.instructions("LDG.E.U16")) <= 40  # scales: not numbers of x


def test_pairs_are_sorted_by_two_launches() -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.linear_experts import combine_experts, linear_experts

    weight, ids = empty_experts("Q4_0", 16, 64, 256), torch.zeros(300, 4, dtype=torch.int32)
    x, shares = torch.empty(300, 256, dtype=torch.bfloat16), torch.empty(300, 4)
    launches = record_launches(lambda: combine_experts(linear_experts(x, weight, ids), shares))
    names = [launch.kernel.fn.__name__ for launch in launches]
    assert names == ["count_pairs_kernel", "sort_pairs_kernel", "grouped_gemm_kernel", "combine_experts_kernel"]
    for launch in launches:
        assert compile_launch(launch, 90).stack_bytes == 0
