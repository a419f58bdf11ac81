"""The table of angles, and each kind of scaling against its formula, written here another way."""

import math

import numpy as np
import pytest

from close import assert_close
from sporelm.checkpoints import config_from_hf
from sporelm.models import build
from sporelm.models.alibi import alibi_slopes
from sporelm.models.rope_scaling import (
    UNSCALED,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from sporelm.models.rotary import STRIDE, frequencies, rope_table, sections, turns
from tiny_models import LLAMA

THETA, DIM = 5e5, 128
PAIRS = DIM // 2
PLAIN = [THETA ** (-2 * pair / DIM) for pair in range(PAIRS)]
SHORT, LONG = tuple(1 + pair / 100 for pair in range(PAIRS)), tuple(1.0 + pair for pair in range(PAIRS))
LLAMA_3_1 = Llama3Scaling(factor=8.0, original=8192, low=1.0, high=4.0)
KINDS: dict[str, RopeScaling] = {
    "none": UNSCALED,
    "linear": LinearScaling(factor=4.0),
    "dynamic": DynamicNtkScaling(factor=2.0, original=4096),
    "yarn": YarnScaling(factor=4.0, original=32768, attention=1.1386),
    "llama3": LLAMA_3_1,
    "longrope": LongRopeScaling(short=SHORT, long=LONG, original=4096, attention=1.19),
    "divisors": RopeScaling(divisors=LONG),
}


def rates(scaling: RopeScaling, context: int = 4096) -> np.ndarray:
    return frequencies(context, DIM, THETA, scaling)


@pytest.mark.parametrize("name", KINDS)
def test_rows_do_not_depend_on_where_the_table_ends(name: str) -> None:
    """Bitwise, on one side of the original length; across it only where the frequencies follow the context."""
    long, short = (rope_table(context, DIM, THETA, KINDS[name]) for context in (5000, 4097 + 3 * STRIDE // 2))
    if name != "dynamic":
        assert_close(short, long[: len(short)], "exact")
    assert_close(rope_table(1, DIM, THETA, KINDS[name]), rope_table(777, DIM, THETA, KINDS[name])[:1], "exact")


@pytest.mark.parametrize("name", KINDS)
def test_a_table_holds_cosines_and_sines(name: str) -> None:
    """To half a last place of float32, at the end of a long context too."""
    context, scaling = 131072, KINDS[name]
    table = rope_table(context, DIM, THETA, scaling)
    assert table.shape == (context, DIM)
    assert table.dtype == np.float32
    picked = np.array([0, 1, STRIDE - 1, STRIDE, 70001, context - 1])
    angles = picked[:, None] * rates(scaling, context)
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scaling.attention
    half_place = 2**-24 if scaling.attention > 1 else 2**-25
    assert np.abs(table[picked] - expected).max() <= half_place + 1e-10


def test_configuration_to_table() -> None:
    table = build(config_from_hf(LLAMA | {"rope_theta": 5e5}, "c")).tables(300)["rope"]
    assert table.shape == (300, 8)
    position, pair = 299, 3
    angle = position * 5e5 ** (-2 * pair / 8)
    assert_close(table[position, [pair, 4 + pair]], np.float32([np.cos(angle), np.sin(angle)]), "exact")
    assert_close(rope_table(1, 6, 10.0), [[1, 1, 1, 0, 0, 0]], "exact")
    assert_close(rope_table(1, 6, 10.0, RopeScaling(attention=0.75)), [[0.75] * 3 + [0] * 3], "exact")


def test_linear_divides() -> None:
    assert_close(rates(LinearScaling(factor=4.0)), np.array(PLAIN) / 4, "stored")


def test_divisors_divide_last() -> None:
    assert_close(rates(LinearScaling(factor=4.0, divisors=LONG)), np.array(PLAIN) / 4 / LONG, "stored")


@pytest.mark.parametrize("context", [1, 4096, 4097, 8192, 20000])
def test_dynamic_base_follows_the_context(context: int) -> None:
    """transformers' formula at a sequence of that length; nothing changes up to the original."""
    found = rates(DynamicNtkScaling(factor=2.0, original=4096), context)
    base = THETA * (2.0 * max(context, 4096) / 4096 - (2.0 - 1)) ** (DIM / (DIM - 2))
    assert_close(found, [base ** (-2 * pair / DIM) for pair in range(PAIRS)], "stored")
    assert (found[1:] < PLAIN[1:]).all() == (context > 4096)


def test_llama3_in_three_parts() -> None:
    found = rates(LLAMA_3_1)
    seen = set()
    for rate, plain in zip(found, PLAIN, strict=True):
        wave = 2 * math.pi / plain
        if wave < 8192 / 4:
            part, expected = "kept", plain
        elif wave > 8192 / 1:
            part, expected = "divided", plain / 8
        else:
            smooth = (8192 / wave - 1) / (4 - 1)
            part, expected = "mixed", (1 - smooth) * plain / 8 + smooth * plain
        seen.add(part)
        assert rate == pytest.approx(expected, rel=1e-12)
    assert seen == {"kept", "divided", "mixed"}


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("extrapolation", [1.0, 0.5, 0.0])
def test_yarn_in_three_parts(truncate: bool, extrapolation: float) -> None:
    scaling = YarnScaling(factor=4.0, original=32768, truncate=truncate, extrapolation=extrapolation)
    found = rates(scaling)

    def number_of(turns: float) -> float:  # theta ** (-2 i / DIM) * original == 2 pi turns, solved for i
        return DIM / 2 * math.log(32768 / (2 * math.pi * turns), THETA)

    first, last = number_of(32), number_of(1)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    assert 0 < first < last < PAIRS - 1
    for pair, (rate, plain) in enumerate(zip(found, PLAIN, strict=True)):
        kept = extrapolation * (1 - min(1.0, max(0.0, (pair - first) / (last - first))))
        assert rate == pytest.approx(plain / 4 * (1 - kept) + plain * kept, rel=1e-12)


def test_yarn_of_a_tiny_original_is_finite() -> None:
    """The ramp would be empty or turned round."""
    for original in (2, 6, 7):
        found = rates(YarnScaling(factor=4.0, original=original, beta_fast=1.0))
        assert_close(found[1:], np.array(PLAIN[1:]) / 4, "stored")


def test_longrope_picks_its_list_by_the_context() -> None:
    scaling = KINDS["longrope"]
    assert_close(rates(scaling, 4096), np.array(PLAIN) / SHORT, "stored")
    assert_close(rates(scaling, 4097), np.array(PLAIN) / LONG, "stored")


def test_sections_are_of_one_position_each() -> None:
    """Qwen2-VL's 16, 24 and 24 pairs."""
    assert sections((16, 24, 24)) == (0,) * 16 + (1,) * 24 + (2,) * 24


@pytest.mark.parametrize("counts", [(24, 20, 20), (11, 11, 10), (8, 12, 12)])
def test_turns_are_those_of_qwen3_vl(counts: tuple[int, ...]) -> None:
    """The pairs of height and width are every third one from their own first on, as many as their sections are long."""
    expected = np.zeros(sum(counts), int)
    for stream in (1, 2):
        expected[stream : counts[stream] * 3 : 3] = stream
    assert turns(counts) == tuple(expected)


def test_slopes_of_linear_biases() -> None:
    """Of eight heads those of the paper; between powers of two, every other one of the next power's."""
    assert alibi_slopes(8, 8.0).tolist() == [2.0**-n for n in range(1, 9)]
    sixteen = [2 ** (-n / 2) for n in range(1, 17)]
    assert alibi_slopes(16, 8.0).tolist() == pytest.approx(sixteen)
    assert alibi_slopes(12, 8.0).tolist() == pytest.approx([2.0**-n for n in range(1, 9)] + sixteen[:8:2])
    assert alibi_slopes(1, 8.0).tolist() == [2.0**-8]
    assert alibi_slopes(3, 4.0).tolist() == [2.0**-2, 2.0**-4, 2.0**-1]
