"""Rounding with the importance of columns: ggml's blocks, see data/make_quant_goldens.py, and what it is for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant_inputs import CASES, IMPORTANCES, NORMAL, checksums, importance, values
from sporelm.quant import FORMATS, dequantize_tensor, format_of, quantize_tensor

GOLDENS = np.load(Path(__file__).parents[2] / "data" / "quant_goldens.npz")
ROWS, WIDTH = 32, 512
WEIGHTED = sorted(name for name, number_format in FORMATS.items() if number_format.can_weigh)
SUPER = [name for name in WEIGHTED if FORMATS[name].values == 256]
COMMON = (NORMAL, "groups of many sizes", "any finite bits")
SOME = [pytest.param(case, marks=[] if case in COMMON else [pytest.mark.all]) for case in CASES]


@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("name", WEIGHTED)
def test_blocks_are_those_of_ggml(name: str, case: str) -> None:
    x = values(case, ROWS).reshape(-1, WIDTH)
    made = [quantize_tensor(FORMATS[name], x, importance(kind, WIDTH)) for kind in IMPORTANCES]
    expected = GOLDENS[f"weighted/{name}"][list(CASES).index(case)]
    different = checksums(np.stack(made).reshape(len(made), -1)) != expected
    assert [kind for kind, is_different in zip(IMPORTANCES, different, strict=True) if is_different] == []


@pytest.mark.parametrize("name", WEIGHTED)
def test_important_columns_have_less_error(name: str) -> None:
    x = values(NORMAL, 256).reshape(-1, WIDTH)
    columns = np.exp2(np.linspace(-6, 6, WIDTH)[np.random.default_rng(1).permutation(WIDTH)]).astype(np.float32)

    def cost(given: np.ndarray | None) -> float:
        blocks = quantize_tensor(FORMATS[name], x, given)
        return float((columns * (dequantize_tensor(FORMATS[name], blocks, x.shape) - x) ** 2).sum())

    assert cost(columns) < 0.97 * cost(None)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 30), power=st.integers(-20, 20))
def test_only_proportions_of_importance_count(name: str, seed: int, power: int) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal((2, 256), np.float32)
    columns = random.random(256, np.float32)
    times = columns * np.float32(2.0**power)
    first, second = (quantize_tensor(FORMATS[name], x, given) for given in (columns, times))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("kind", ["zeros", "with zeros", "tiny"])
def test_values_stay_near_whatever_counts(name: str, kind: str) -> None:
    x = values(NORMAL, 8).reshape(-1, WIDTH)
    back = dequantize_tensor(FORMATS[name], quantize_tensor(FORMATS[name], x, importance(kind, WIDTH)), x.shape)
    assert np.isfinite(back).all()
    assert np.abs(back).max() <= 2 * np.abs(x).max()


@pytest.mark.parametrize("name", SUPER)
def test_a_block_with_importance_depends_on_nothing_but_itself(name: str) -> None:
    x, columns = values(NORMAL, 131), importance("squares", 256)  # more than is searched at once
    alone = np.concatenate([quantize_tensor(FORMATS[name], row[None], columns) for row in x[-3:]])
    assert np.array_equal(quantize_tensor(FORMATS[name], x, columns)[-3:], alone)


@pytest.mark.parametrize("name", [name for name in WEIGHTED if FORMATS[name].values == 32])
def test_a_row_with_importance_depends_on_nothing_but_itself(name: str) -> None:
    x, columns = values(NORMAL, 32).reshape(-1, WIDTH), importance("squares", WIDTH)
    alone = np.concatenate([quantize_tensor(FORMATS[name], row[None], columns) for row in x])
    assert np.array_equal(quantize_tensor(FORMATS[name], x, columns), alone)


@pytest.mark.parametrize("name", SUPER)
def test_no_values_give_no_blocks(name: str) -> None:
    nothing = np.zeros((0, 256), np.float32)
    assert format_of(name).quantize(nothing, nothing).shape == (0, FORMATS[name].nbytes)


@pytest.mark.parametrize("name", [name for name, found in sorted(FORMATS.items()) if found.can_quantize])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_single_block_is_rounded_as_many_are(name: str, weighted: bool) -> None:
    size = FORMATS[name].values
    x = np.random.default_rng(4).standard_normal((200, size), np.float32)
    columns = importance("squares", WIDTH)[:size].copy() if weighted else None
    alone = np.concatenate([quantize_tensor(FORMATS[name], row[None], columns) for row in x])
    assert np.array_equal(quantize_tensor(FORMATS[name], x, columns), alone)
