"""Codebooks and non-uniform levels."""

import subprocess
import sys

import numpy as np
import pytest

from sporelm.quant.grids import SHAPES, expand_sign_codes, load_grid
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED, IQ4_LEVELS, round_to_e2m1, round_to_iq4

LEVELS = {
    "IQ1": {-1, 0, 1},
    "IQ2_XXS": {8, 25, 43},
    "IQ2_XS": {8, 25, 43},
    "IQ2_S": {8, 25, 43},
    "IQ3_XXS": {4, 12, 20, 28, 36, 44, 52, 62},
    "IQ3_S": set(range(1, 16, 2)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_codebooks_hold_distinct_groups_of_their_levels(name: str) -> None:
    table = load_grid(name)
    assert (table.shape, table.dtype) == (SHAPES[name], np.int8)
    assert set(np.unique(table).tolist()) == LEVELS[name]
    assert len(np.unique(table, axis=0)) == len(table)
    assert load_grid(name) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0


def test_codebooks_are_loaded_on_first_use() -> None:
    code = "import sporelm.quant, sporelm.quant.grids as g; assert g.load_grid.cache_info().misses == 0"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_signs_are_even_in_number() -> None:
    signs = expand_sign_codes(np.arange(128))
    assert (signs & 127).tolist() == list(range(128))
    assert all(int(byte).bit_count() % 2 == 0 for byte in signs)


def test_the_nearest_level_is_found_and_halves_go_up() -> None:
    x = np.concatenate([np.linspace(-200, 200, 12_801), [-1e30, 1e30, -np.inf, np.inf]]).astype(np.float32)
    distances = np.abs(np.clip(x, -200, 200)[:, None].astype(np.float64) - IQ4_LEVELS)
    last = 15 - distances[:, ::-1].argmin(axis=1)
    assert round_to_iq4(x).tolist() == last.tolist()
    assert round_to_iq4(np.array([np.nan], np.float32)).tolist() == [15]


def test_every_e2m1_number_comes_back_and_ties_go_to_the_first() -> None:
    codes = round_to_e2m1(E2M1_DOUBLED[None] * np.float32(0.25), np.array([[0.25]], np.float32))
    assert codes.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15]]
    between = round_to_e2m1(np.array([[0.5, 5, -5, 100, -100]], np.float32), np.ones((1, 1), np.float32))
    assert between.tolist() == [[0, 4, 12, 7, 15]]
