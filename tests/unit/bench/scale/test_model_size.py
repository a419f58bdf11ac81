"""The numbers of a model, from a shape and from a configuration."""

import pytest

from sporelm.bench.model_shapes import SHAPES
from sporelm.bench.scale.model_size import ModelSize
from sporelm.errors import RequestError
from sporelm.models.config import ModelConfig


def test_llama_70b_has_70_billion_weights() -> None:
    model = ModelSize.from_shape("llama-70b", "f16")
    assert model.num_values + model.output_values == pytest.approx(70.6e9, rel=0.01)
    assert model.kv_bytes == 2 * 80 * 8 * 128 * 2
    assert (model.number_type, model.value_bytes) == ("f16", 2)


@pytest.mark.parametrize("shape", ["smollm2-360m", "llama-1b", "qwen3-30b-a3b"])
def test_matrices_are_those_of_the_shape(shape) -> None:
    model = ModelSize.from_shape(shape, "q4_0")
    tensors = SHAPES[shape].tensors()
    matrices = [a for name, a in tensors.items() if len(a) > 1 and name != "token_embd.weight"]
    total = sum(a[0] * a[1] * (a[2] if len(a) > 2 else 1) for a in matrices)
    if "output.weight" not in tensors:  # tied
        total += model.output_values
    assert model.num_values == total
    assert model.value_bytes == pytest.approx(18 / 32)


def test_a_configuration_gives_the_same_numbers() -> None:
    shape = SHAPES["llama-1b"]
    config = ModelConfig(
        "llama-1b:q8_0", "llama", shape.layers, shape.width, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn,
        shape.vocab, 1e-5, shape.rope_theta, shape.context, dtype="Q8_0",
    )  # fmt: skip
    assert ModelSize.from_config(config) == ModelSize.from_shape("llama-1b", "q8_0")


def test_a_token_uses_few_experts() -> None:
    model = ModelSize.from_shape("qwen3-30b-a3b", "q4_0")
    assert model.used_ffn_values < model.ffn_values / 10


@pytest.mark.parametrize(
    ("shape", "number_format", "message"),
    [
        ("llama-9000b", "q4_0", "unknown shape"),
        ("llama-1b", "q99", "unknown number format"),
        ("qwen3.5-9b", "q4_0", "not supported"),
    ],
)
def test_unknown_models_are_refused(shape, number_format, message) -> None:
    with pytest.raises(RequestError, match=message):
        ModelSize.from_shape(shape, number_format)
