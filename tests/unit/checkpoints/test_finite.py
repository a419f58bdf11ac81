"""Whether a tensor's floats are finite is told by a few bytes of its blocks: as the values tell it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sporelm.checkpoints.loader import check_finite
from sporelm.errors import ModelFileError
from sporelm.ops.quantize_rows import ROW_FORMATS
from sporelm.quant import FOLDER_FORMATS, FORMATS
from sporelm.quant.stored_tensor import StoredTensor

SOURCE: Any = SimpleNamespace(path="model.gguf")
BLOCKS = 600  # of random bytes; of a scale of float16 one in 32 is not finite
FORMS = {name: form for name, form in FORMATS.items() if form.activation in ROW_FORMATS} | FOLDER_FORMATS


def passes(name: str, blocks: np.ndarray) -> bool:
    form = FORMS[name]
    try:
        check_finite(SOURCE, StoredTensor("weight", form, (len(blocks), form.values), blocks.reshape(-1)))
    except ModelFileError:
        return False
    return True


@pytest.mark.parametrize("name", sorted(FORMS))
def test_bytes_tell_what_values_tell(name: str) -> None:
    form = FORMS[name]
    blocks = np.random.default_rng(1).integers(0, 256, (BLOCKS, form.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = np.isfinite(form.dequantize(blocks)).all(axis=1)
    assert expected.any()
    assert not expected.all() or name == "NVFP4"
    assert [passes(name, block[None]) for block in blocks] == expected.tolist()
    assert passes(name, blocks[expected])
    assert passes(name, blocks) == expected.all()
