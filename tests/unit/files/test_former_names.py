"""Programs that import the former `sporelm.weights` keep working."""

import sporelm.weights.gguf
import sporelm.weights.safetensors
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.files.safetensors import open_safetensors


def test_former_modules_give_the_same_objects() -> None:
    assert sporelm.weights.gguf.open_gguf is open_gguf
    assert sporelm.weights.gguf.GgufWriter is GgufWriter
    assert sporelm.weights.safetensors.open_safetensors is open_safetensors
