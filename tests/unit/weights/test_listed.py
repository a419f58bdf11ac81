"""Weights that GGUF files hold as lists in their metadata."""

from typing import Any

import numpy as np
import pytest

from sporelm.errors import ModelFileError
from sporelm.models import model_of
from sporelm.weights.listed import listed_numbers

FAMILY = model_of("apertus").family
LISTS: dict[str, Any] = {"xielu.alpha_p": [1.0, 2.0], "xielu.alpha_n": np.array([3.0, 4.0], np.float32)}
LISTS |= {"xielu.beta": 0.5, "xielu.eps": [0.0, -1e-6]}


def test_lists_are_tensors_a_number_a_layer() -> None:
    found = listed_numbers(FAMILY, LISTS, 2, "m.gguf")
    assert {name: values.shape for name, values in found.items()} == {
        "xielu.alpha_p": (2, 1),
        "xielu.alpha_n": (2, 1),
        "xielu.beta": (2,),
        "xielu.eps": (2,),
    }
    assert found["xielu.alpha_n"].tolist() == [[3.0], [4.0]]
    assert found["xielu.beta"].tolist() == [0.5, 0.5]  # one number for all layers
    assert listed_numbers(model_of("llama").family, LISTS, 2, "m.gguf") == {}


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
        listed_numbers(FAMILY, LISTS | change, 2, "m.gguf")
