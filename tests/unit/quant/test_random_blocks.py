"""Random blocks of the formats with code books: valid, and as large as asked."""

import numpy as np
import pytest

from sporelm.quant import FORMATS
from sporelm.quant.random_blocks import SCALE_OFFSETS, make_random_blocks, replace_scales

FORMS = [FORMATS[name] for name in SCALE_OFFSETS]


def test_they_cover_the_read_only_formats() -> None:
    books = {name for name, form in FORMATS.items() if name.startswith("IQ") and not form.can_quantize}
    assert books == {*SCALE_OFFSETS}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_scales_change_no_codes(form: type) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (7, form.nbytes), np.uint8)
    ones, factors = np.ones(7, np.float16), np.array([2, -0.5, 0, 6e-5, 1000, 1, 0.25], np.float16)
    plain = form.dequantize(replace_scales(form, raw, ones))
    assert np.array_equal(
        form.dequantize(replace_scales(form, raw, factors)), plain * factors[:, None].astype(np.float32)
    )
    assert np.isfinite(plain).all()
    assert not np.shares_memory(raw, replace_scales(form, raw, ones))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_values_are_as_large_as_asked(form: type) -> None:
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (20, form.nbytes), np.uint8)
    wanted = random.standard_normal((20, 256), np.float32) * np.geomspace(1e-3, 100, 20, dtype=np.float32)[:, None]
    wanted[3] = 0
    found = form.dequantize(make_random_blocks(form, raw, wanted))
    sizes = [np.sqrt(np.mean(each.astype(np.float64) ** 2, axis=1)) for each in (wanted, found)]
    assert np.allclose(*sizes, rtol=2e-3, atol=0)
