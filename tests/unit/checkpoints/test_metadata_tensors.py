"""Weights that GGUF files hold as lists in their metadata."""

from typing import Any

import numpy as np
import pytest

from sporelm.checkpoints.metadata_tensors import read_metadata_tensors
from sporelm.checkpoints.schema_registry import find_gguf_schema
from sporelm.errors import ModelFileError

SCHEMA = find_gguf_schema("apertus")
LISTS: dict[str, Any] = {"xielu.alpha_p": [1.0, 2.0], "xielu.alpha_n": np.array([3.0, 4.0], np.float32)}
LISTS |= {"xielu.beta": 0.5, "xielu.eps": [0.0, -1e-6]}


def test_lists_are_tensors_a_number_a_layer() -> None:
    found = read_metadata_tensors(SCHEMA, LISTS, 2, "m.gguf")
    assert {name: values.shape for name, values in found.items()} == {
        "xielu.alpha_p": (2, 1),
        "xielu.alpha_n": (2, 1),
        "xielu.beta": (2,),
        "xielu.eps": (2,),
    }
    assert found["xielu.alpha_n"].tolist() == [[3.0], [4.0]]
    assert found["xielu.beta"].tolist() == [0.5, 0.5]  # one number for all layers
    assert read_metadata_tensors(find_gguf_schema("llama"), LISTS, 2, "m.gguf") == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xielu.eps": None}, "xielu.eps is missing"),
        ({"xielu.eps": [1.0]}, "xielu.eps is 1 values; it must be a list of 2 numbers"),
        ({"xielu.eps": "x"}, "xielu.eps is 'x'; it must be a list of 2 numbers"),
        ({"xielu.eps": [0.0, float("nan")]}, "value 1 of xielu.eps is nan"),
    ],
)
def test_other_lists_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_metadata_tensors(SCHEMA, LISTS | change, 2, "m.gguf")
