"""Configurations read from GGUF metadata and from config.json: what they mean, and what they are refused for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.models.config import ModelConfig
from tiny_models import LLAMA, MISTRAL

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 88,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
}
SHAPES = {"token_embd.weight": (131, 48), "output.weight": (131, 48)}


def gguf(**change: Any) -> ModelConfig:
    metadata = {**GGUF, **{f"llama.{key.replace('__', '.')}": value for key, value in change.items()}}
    return config_from_gguf({key: value for key, value in metadata.items() if value is not None}, SHAPES, "x.gguf")


def test_gguf_and_folder_say_the_same() -> None:
    from_gguf, from_hf = gguf(), config_from_hf(LLAMA, "config.json")
    different = {
        name for name in ModelConfig.__dataclass_fields__ if getattr(from_gguf, name) != getattr(from_hf, name)
    }
    assert different == {"name", "architecture", "declared_positions"}
    assert from_gguf.architecture == "llama"
    assert from_hf.architecture == "LlamaForCausalLM"


def test_story(story: Path) -> None:
    config = config_from_hf(json.loads((story / "config.json").read_text()), "config.json")
    assert (config.layers, config.width, config.heads, config.kv_heads, config.head_dim) == (2, 128, 8, 4, 16)
    assert (config.ffn, config.vocab, config.eps, config.rope_theta) == (384, 2048, 1e-6, 10000.0)
    assert config.tie_embeddings
    assert config.window is None


def test_gguf_without_output_is_tied() -> None:
    assert config_from_gguf(GGUF, {"token_embd.weight": (131, 48)}, "x").tie_embeddings
    assert not gguf().tie_embeddings


def test_gguf_biases_are_seen_in_the_tensors() -> None:
    config = config_from_gguf(GGUF, SHAPES | {"blk.0.attn_q.bias": (48,)}, "x")
    assert config.attention_bias
    assert not config.mlp_bias


def test_gguf_defaults() -> None:
    config = gguf(attention__head_count_kv=None, rope__freq_base=None, rope__dimension_count=None)
    assert (config.kv_heads, config.rope_theta, config.head_dim) == (6, 10000.0, 8)


PER_LAYER = {"attention.head_count": 6, "attention.head_count_kv": 2, "feed_forward_length": 88}


def from_file(path: Path, key: str, value: Any) -> ModelConfig:
    """The configuration as a file gives it, with one value changed."""
    writer = GgufWriter(path / "m.gguf")
    for name, usual in (GGUF | {f"llama.{key}": value}).items():
        writer.add(name, usual, "f64" if name.endswith("epsilon") else None)
    writer.write()
    with open_gguf(path / "m.gguf") as file:
        return config_from_gguf(file.metadata, SHAPES, "m.gguf")


@pytest.mark.parametrize("key", PER_LAYER)
def test_gguf_numbers_may_be_given_for_each_layer(tmp_path: Path, key: str) -> None:
    assert from_file(tmp_path, key, [PER_LAYER[key]] * 2) == gguf()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([2, 3], "head_count_kv differs between layers"),
        ([[2, 2], [2, 2]], "must be one number for each layer"),
        ([2] * 5000, "has 5000 values; at most 4096"),
        ([2.0, 2.0], "head_count_kv is 2.0; it must be an integer"),
        (["2", "2"], "head_count_kv is '2'; it must be an integer"),
        ([-2, -2], "head_count_kv is -2; it must be an integer"),
        ([True, True], "head_count_kv is True; it must be an integer"),
    ],
    ids=["different", "nested", "many", "float", "text", "negative", "bool"],
)
def test_gguf_numbers_for_each_layer_are_checked(tmp_path: Path, value: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_file(tmp_path, "attention.head_count_kv", value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a" * 900, "a" * 200), (" Two\nlines\x1b[2J", "Two lines [2J"), ("", "llama"), ("\t", "llama")],
)
def test_a_name_is_one_line_and_not_too_long(given: str, shown: str) -> None:
    config = config_from_gguf(GGUF | {"general.name": given}, SHAPES, "x.gguf")
    assert config.name == shown
    assert config_from_hf(LLAMA | {"_name_or_path": "a" * 900}, "config.json").name == "a" * 200


def test_window_of_each_layer() -> None:
    config = config_from_hf(MISTRAL | {"layer_types": ["full_attention", "sliding_attention"]}, "config.json")
    assert [config.window_of(layer) for layer in range(2)] == [None, 5]
    assert config_from_hf(MISTRAL | {"sliding_window": None}, "config.json").window is None
    assert config_from_hf(LLAMA | {"sliding_window": 5}, "config.json").window is None
    assert gguf(attention__sliding_window=7).window == 7


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_theta_may_lie_in_the_rope_parameters(key: str) -> None:
    values = {name: value for name, value in LLAMA.items() if name != "rope_theta"}
    assert config_from_hf(values | {key: {"rope_type": "default", "rope_theta": 5e5}}, "c").rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"block_count": None}, ModelFileError, "block_count is missing"),
        ({"block_count": 0}, ModelFileError, "block_count is 0; it must be an integer from 1 to 4096"),
        ({"block_count": 1 << 40}, ModelFileError, "from 1 to 4096"),
        ({"block_count": True}, ModelFileError, "block_count is True"),
        ({"embedding_length": -48}, ModelFileError, "embedding_length is -48"),
        ({"embedding_length": 48.0}, ModelFileError, "embedding_length is 48.0"),
        ({"attention.head_count": 5}, ModelFileError, "width 48 is not a multiple of 5 heads"),
        ({"attention.head_count_kv": 4}, ModelFileError, "6 query heads are not a multiple of 4"),
        ({"attention.key_length": 7}, UnsupportedModel, "value_length|rope.dimension_count|odd"),
        ({"attention.value_length": 4}, UnsupportedModel, "value_length must equal"),
        ({"rope.dimension_count": 4}, UnsupportedModel, "rope.dimension_count 4 is not supported; 8 is"),
        ({"rope.freq_base": float("nan")}, ModelFileError, "freq_base is nan"),
        ({"rope.freq_base": "many"}, ModelFileError, "freq_base is 'many'"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, ModelFileError, "epsilon is 0.0; it must be a number from"),
        ({"context_length": 1 << 60}, ModelFileError, "context_length"),
    ],
)
def test_gguf_values_refused(change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        gguf(**{key.replace(".", "__"): value for key, value in change.items()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"architectures": []}, ModelFileError, "architectures must name the model's class"),
        ({"architectures": "LlamaForCausalLM"}, ModelFileError, "architectures must name"),
        ({"hidden_size": None}, ModelFileError, "hidden_size is missing"),
        ({"hidden_size": "48"}, ModelFileError, "hidden_size is '48'"),
        ({"num_attention_heads": 7}, ModelFileError, "not a multiple of 7 heads"),
        ({"num_key_value_heads": 4}, ModelFileError, "not a multiple of 4"),
        ({"head_dim": 9}, UnsupportedModel, "head dimension 9 is odd"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu' is not supported"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor is 0.5; only 1 is supported"),
        ({"tie_word_embeddings": "yes"}, ModelFileError, "must be true or false"),
        ({"layer_types": ["full_attention"]}, UnsupportedModel, "each of the 2 layers"),
        ({"vocab_size": 1 << 30}, ModelFileError, "vocab_size"),
        ({"rms_norm_eps": "1e-5"}, ModelFileError, "rms_norm_eps is '1e-5'"),
        ({"rms_norm_eps": 10**400}, ModelFileError, "rms_norm_eps is 1000"),
        ({"rope_theta": float("inf")}, ModelFileError, "rope_theta is inf"),
    ],
)
def test_folder_values_refused(change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(LLAMA | change, "config.json")
    assert "\n" not in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def taken_or_refused(read: Callable[[], ModelConfig]) -> None:
    """Any outcome but one: an error that is not ours, or longer than a line."""
    refusal = ""
    try:
        config = read()
    except ModelError as reason:
        refusal = str(reason)
    assert refusal or config.heads % config.kv_heads == 0
    assert "\n" not in refusal
    assert len(refusal) < 400


@given(st.sampled_from([*sorted(MISTRAL), "head_dim", "rope_scaling", "layer_types", "mlp_bias"]), ANYTHING)
def test_any_folder_value_is_taken_or_refused_in_one_line(key: str, value: Any) -> None:
    taken_or_refused(lambda: config_from_hf(MISTRAL | {key: value}, "config.json"))


@given(st.sampled_from([*sorted(GGUF), "llama.attention.key_length"]), ANYTHING)
def test_any_gguf_value_is_taken_or_refused_in_one_line(key: str, value: Any) -> None:
    taken_or_refused(lambda: config_from_gguf(GGUF | {key: value}, SHAPES, "x.gguf"))
