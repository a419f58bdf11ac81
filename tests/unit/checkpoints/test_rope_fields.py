"""Rotary values of GGUF metadata and of config.json: what they mean, and what they are refused for."""

from math import log, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.rope_fields import GGUF_KEYS, HF_KEYS, Rope, rope_from_gguf, rope_from_hf
from sporelm.checkpoints.rope_writing import rope_to_gguf, rope_to_hf
from sporelm.checkpoints.schema_registry import find_hf_schema
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.rope_scaling import (
    UNSCALED,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)

DIM, CONTEXT, ORIGINAL = 8, 4096, 1024
BY_FOUR = 1 + 0.1 * log(4)  # YaRN's attention factor for a factor of 4
FEW, MORE = [1.0, 1.25, 1.5, 2], [1.0, 4.0, 8.0, 16.0]
HF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
HF_LLAMA3 = HF_YARN | {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0}
HF_LONG = {
    "rope_type": "longrope", "short_factor": FEW, "long_factor": MORE, "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": ORIGINAL}
LONG_TENSORS = {"rope_factors_short.weight": tuple(FEW), "rope_factors_long.weight": tuple(MORE)}


def hf(scaling: Any, *, key: str = "rope_scaling", dim: int = DIM, **more: Any) -> Rope:
    return rope_from_hf(ConfigValues({key: scaling} | more, "config.json"), dim, CONTEXT)


def gguf(scaling: dict[str, Any], tensors: dict[str, tuple[float, ...]] | None = None, **more: Any) -> Rope:
    values = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    values |= {f"rope.{key}": value for key, value in more.items()}
    return rope_from_gguf(ConfigValues(values, "x"), tensors or {}, DIM, CONTEXT)


HF_MEANT: list[tuple[dict[str, Any], RopeScaling, int]] = [
    ({}, UNSCALED, CONTEXT),
    ({"rope_type": "default", "rope_theta": 1e4}, UNSCALED, CONTEXT),
    ({"type": "linear", "factor": 4}, LinearScaling(factor=4.0, original=CONTEXT), 16384),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicNtkScaling(factor=2.0, original=CONTEXT), 8192),
    (HF_YARN, YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR), CONTEXT),
    (HF_YARN | {"factor": 40.0}, YarnScaling(factor=40.0, original=ORIGINAL, attention=1 + 0.1 * log(40)), 40960),
    (HF_YARN | {"factor": None}, YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR), CONTEXT),
    (HF_YARN | {"factor": 0.5}, YarnScaling(factor=0.5, original=ORIGINAL), CONTEXT),
    (HF_YARN | {"attention_factor": 0.75}, YarnScaling(factor=4.0, original=ORIGINAL, attention=0.75), CONTEXT),
    (HF_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, YarnScaling(factor=4.0, original=ORIGINAL), CONTEXT),
    (
        HF_YARN | {"mscale": 1.0, "mscale_all_dim": 0},
        YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR),
        CONTEXT,
    ),
    (
        HF_YARN | {"mscale": 0.5, "mscale_all_dim": 2.0},
        YarnScaling(factor=4.0, original=ORIGINAL, attention=(1 + 0.05 * log(4)) / (1 + 0.2 * log(4))),
        CONTEXT,
    ),
    (
        HF_YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False},
        YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR, beta_fast=16.0, beta_slow=2.0, truncate=False),
        CONTEXT,
    ),
    (
        HF_YARN | {"beta_fast": None, "beta_slow": 0},
        YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR),
        CONTEXT,
    ),
    (HF_LLAMA3, Llama3Scaling(factor=8.0, original=ORIGINAL, low=1.0, high=4.0), CONTEXT),
    (
        HF_LONG,
        LongRopeScaling(
            short=tuple(FEW), long=tuple(MORE), original=ORIGINAL, attention=sqrt(1 + log(4) / log(ORIGINAL))
        ),
        CONTEXT,
    ),
    (HF_LONG | {"factor": 1.0}, LongRopeScaling(short=tuple(FEW), long=tuple(MORE), original=ORIGINAL), CONTEXT),
]


@pytest.mark.parametrize(("scaling", "meant", "context"), HF_MEANT)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_folders_mean(scaling: dict[str, Any], meant: RopeScaling, context: int, key: str) -> None:
    found = hf(scaling, key=key)
    assert found.scaling == meant
    assert found.context_length == context
    assert found.theta == 1e4


@pytest.mark.parametrize(("architecture", "context"), [("Gemma3ForCausalLM", 131072), ("LlamaForCausalLM", 8 * 131072)])
def test_what_linear_scaling_gains_is_counted_once(architecture: str, context: int) -> None:
    """Gemma 3's folders of 4B and more say 131072 positions and a factor of 8: they were made for 131072."""
    config = {"architectures": [architecture], "hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 64}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100}
    config |= {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    found = config_from_hf(config, "config.json")
    assert found.context_length == context
    written = rope_to_hf(found, None, counts_scaled_positions=find_hf_schema(architecture).counts_scaled_positions)
    assert config_from_hf(config | written, "config.json") == found
    fields = {key: value for key, (_, value) in rope_to_gguf(found, 131072).fields.items()}
    back = rope_from_gguf(ConfigValues(fields, "a.gguf"), {}, 16, 131072)
    assert (back.context_length, back.scaling) == (context, found.rope_scaling)


def test_the_original_length_may_lie_outside() -> None:
    """As Phi-3's folders have it; it counts before the one inside, as in transformers."""
    scaling: Any = hf(HF_LONG, original_max_position_embeddings=512).scaling
    assert scaling.original == 512
    inner = {key: value for key, value in HF_LONG.items() if not key.startswith("original")}
    assert hf(inner, original_max_position_embeddings=ORIGINAL) == hf(HF_LONG)


def test_both_names_may_be_given_if_they_agree() -> None:
    assert hf(HF_YARN, rope_parameters=dict(HF_YARN)) == hf(HF_YARN)
    assert hf(None, rope_parameters=HF_YARN) == hf(HF_YARN)


GGUF_MEANT: list[tuple[dict[str, Any], dict[str, tuple[float, ...]], RopeScaling, int]] = [
    ({}, {}, UNSCALED, CONTEXT),
    ({"type": "none", "factor": 4.0}, {}, UNSCALED, CONTEXT),
    ({"type": "linear", "factor": 1.0}, {}, UNSCALED, CONTEXT),
    ({"type": "linear", "factor": 4.0}, {}, LinearScaling(factor=4.0), CONTEXT),
    ({"factor": 4.0}, {}, LinearScaling(factor=4.0), CONTEXT),
    ({"factor": 4.0, "attn_factor": 1.5}, {}, LinearScaling(factor=4.0, attention=1.5), CONTEXT),
    ({"factor": 8.0, "original_context_length": 1024}, {}, LinearScaling(factor=8.0, original=1024), 8192),
    ({}, {"rope_freqs.weight": tuple(MORE)}, RopeScaling(divisors=tuple(MORE)), CONTEXT),
    ({}, {"rope_freqs.weight": (1.0,) * 4}, UNSCALED, CONTEXT),
    (YARN, {}, YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR), CONTEXT),
    (YARN | {"factor": 8.0}, {}, YarnScaling(factor=8.0, original=ORIGINAL, attention=1 + 0.1 * log(8)), 8192),
    (YARN | {"attn_factor": 0.5}, {}, YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR / 2), CONTEXT),
    (YARN | {"yarn_attn_factor": 0.5}, {}, YarnScaling(factor=4.0, original=ORIGINAL, attention=0.5), CONTEXT),
    (YARN | {"yarn_log_multiplier": 1.0}, {}, YarnScaling(factor=4.0, original=ORIGINAL), CONTEXT),
    (YARN | {"yarn_ext_factor": 0.0}, {}, YarnScaling(factor=4.0, original=ORIGINAL, extrapolation=0.0), CONTEXT),
    (
        YARN | {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "finetuned": True},
        {},
        YarnScaling(factor=4.0, original=ORIGINAL, attention=BY_FOUR, beta_fast=16.0, beta_slow=2.0),
        CONTEXT,
    ),
    (
        {"type": "longrope", "original_context_length": ORIGINAL, "attn_factor": 1.25},
        LONG_TENSORS,
        LongRopeScaling(short=tuple(FEW), long=tuple(MORE), original=ORIGINAL, attention=1.25),
        CONTEXT,
    ),
    # As llama.cpp's converter writes Phi-3, which says no type, and MiniCPM3, which says nothing.
    (
        {"original_context_length": ORIGINAL, "attn_factor": 1.25},
        LONG_TENSORS,
        LongRopeScaling(short=tuple(FEW), long=tuple(MORE), original=ORIGINAL, attention=1.25),
        CONTEXT,
    ),
    ({}, LONG_TENSORS, LongRopeScaling(short=tuple(FEW), long=tuple(MORE), original=CONTEXT), CONTEXT),
]


@pytest.mark.parametrize(("scaling", "tensors", "meant", "context"), GGUF_MEANT)
def test_gguf_means(
    scaling: dict[str, Any], tensors: dict[str, tuple[float, ...]], meant: RopeScaling, context: int
) -> None:
    found = gguf(scaling, tensors, freq_base=5e5)
    assert found == Rope(5e5, meant, context)


def test_the_old_key_of_linear_scaling() -> None:
    assert gguf({}, scale_linear=4.0).scaling == LinearScaling(factor=4.0)
    assert gguf({"factor": 2.0}, scale_linear=4.0).scaling == LinearScaling(factor=2.0), "the new key counts"


HF_REFUSED: list[tuple[Any, type[ModelError], str]] = [
    ([1], ModelFileError, "rope parameters must be an object"),
    ({"rope_type": "ntk"}, UnsupportedModel, "rope type 'ntk' is not supported: default, linear, .* longrope are"),
    ({"rope_type": ["yarn"]}, UnsupportedModel, r"rope type \['yarn'\] is not supported"),
    ({"rope_type": "linear"}, ModelFileError, "factor is missing"),
    ({"rope_type": "linear", "factor": 0}, ModelFileError, "factor is 0; it must be a number from 0.001 to"),
    ({"rope_type": "linear", "factor": -2.0}, ModelFileError, "factor is -2.0"),
    ({"rope_type": "linear", "factor": "4"}, ModelFileError, "factor is '4'"),
    ({"rope_type": "linear", "factor": True}, ModelFileError, "factor is True"),
    ({"rope_type": "dynamic", "factor": float("nan")}, ModelFileError, "factor is nan"),
    ({"rope_type": "dynamic", "factor": 1e400}, ModelFileError, "factor is inf"),
    (HF_YARN | {"original_max_position_embeddings": None}, ModelFileError, "original_max_position_embeddings is miss"),
    (HF_YARN | {"original_max_position_embeddings": 0}, ModelFileError, "original_max_position_embeddings is 0"),
    (HF_YARN | {"original_max_position_embeddings": 1e3}, ModelFileError, "original_max_position_embeddings is 1000.0"),
    (HF_YARN | {"beta_fast": 1, "beta_slow": 2}, ModelFileError, "beta_fast 1 is below beta_slow 2"),
    (HF_YARN | {"beta_slow": 5e-324}, ModelFileError, "beta_slow is 5e-324; it must be a number from 0.001"),
    (HF_YARN | {"attention_factor": -1}, ModelFileError, "attention_factor is -1"),
    (HF_YARN | {"truncate": 1}, ModelFileError, "truncate is 1; it must be true or false"),
    (HF_YARN | {"rope_theta": 1}, ModelFileError, "a rotary base of 1 has no fast and slow frequencies"),
    (HF_YARN | {"extrapolation_factor": 1}, UnsupportedModel, "rope parameter 'extrapolation_factor' is unknown"),
    (HF_YARN | {"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor is 0.5; only 1 is supported"),
    ({"full_attention": {"rope_type": "linear"}}, UnsupportedModel, "rope parameter 'full_attention' is unknown"),
    (HF_LLAMA3 | {"low_freq_factor": None}, ModelFileError, "low_freq_factor is missing"),
    (HF_LLAMA3 | {"high_freq_factor": 0}, ModelFileError, "high_freq_factor is 0"),
    (HF_LLAMA3 | {"high_freq_factor": 0.5}, ModelFileError, "high_freq_factor 0.5 is below low_freq_factor 1"),
    (HF_LLAMA3 | {"original_max_position_embeddings": None}, ModelFileError, "embeddings is missing"),
    (HF_LONG | {"long_factor": FEW[:3]}, ModelFileError, "long_factor is 3 values; it must be a list of 4 numbers"),
    (HF_LONG | {"short_factor": 1.0}, ModelFileError, "short_factor is 1.0; it must be a list of 4 numbers"),
    (HF_LONG | {"short_factor": [1, 1, 0, 1]}, ModelFileError, "value 2 of short_factor is 0; it must be a number"),
    (HF_LONG | {"short_factor": None}, ModelFileError, "short_factor is missing"),
]


@pytest.mark.parametrize(("scaling", "kind", "message"), HF_REFUSED)
def test_folder_values_refused(scaling: Any, kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        hf(scaling)
    assert "\n" not in str(caught.value)


def test_more_folders_refused() -> None:
    with pytest.raises(ModelFileError, match=r"rope_scaling and rope_parameters differ\. Remove one"):
        hf(HF_YARN, rope_parameters=HF_LLAMA3)
    with pytest.raises(ModelFileError, match="dynamic rope scaling needs heads of at least 4 dimensions"):
        hf({"type": "dynamic", "factor": 2.0}, dim=2)


GGUF_REFUSED: list[tuple[dict[str, Any], dict[str, tuple[float, ...]], type[ModelError], str]] = [
    ({"type": "su"}, {}, UnsupportedModel, "type 'su' is not supported: none, linear, yarn, longrope are"),
    ({"type": 1}, {}, ModelFileError, "rope.scaling.type is 1; it must be text"),
    ({"type": "linear"}, {}, ModelFileError, "rope.scale_linear is missing"),
    ({"factor": 0.0}, {}, ModelFileError, "rope.scaling.factor is 0.0"),
    ({"factor": -4.0}, {}, ModelFileError, "rope.scaling.factor is -4.0"),
    ({"factor": float("nan")}, {}, ModelFileError, "rope.scaling.factor is nan"),
    ({"factor": 4.0, "original_context_length": -1}, {}, ModelFileError, "original_context_length is -1"),
    ({"alpha": 1000.0}, {}, UnsupportedModel, "rope.scaling key 'alpha' is unknown"),
    ({"attn_factor": 0.0}, {}, ModelFileError, "rope.scaling.attn_factor is 0.0"),
    (YARN | {"original_context_length": None}, {}, ModelFileError, "original_context_length is missing"),
    (YARN | {"factor": None}, {}, ModelFileError, "is missing"),
    (YARN | {"yarn_beta_slow": 5e-324}, {}, ModelFileError, "yarn_beta_slow is 5e-324; it must be a number from 0.001"),
    (YARN | {"yarn_beta_fast": 0.5}, {}, ModelFileError, "beta_fast 0.5 is below beta_slow 1"),
    (YARN | {"yarn_ext_factor": -1.0}, {}, ModelFileError, "yarn_ext_factor is -1.0; it must be a number from 0.0"),
    (YARN | {"yarn_attn_factor": 0.0}, {}, ModelFileError, "yarn_attn_factor is 0.0"),
    (YARN | {"yarn_log_multiplier": "1"}, {}, ModelFileError, "yarn_log_multiplier is '1'"),
    (YARN, LONG_TENSORS, ModelFileError, "has the tensors of longrope, but rope.scaling.type is 'yarn'"),
    (YARN | {"type": "longrope", "factor": 1.0}, {}, ModelFileError, "tensor rope_factors_short.weight is missing"),
    (YARN | {"type": "longrope"}, LONG_TENSORS, UnsupportedModel, "longrope together with rope.scaling.factor"),
    (
        YARN | {"type": "longrope", "factor": None},
        LONG_TENSORS | {"rope_freqs.weight": tuple(MORE)},
        UnsupportedModel,
        "longrope together with rope_freqs.weight",
    ),
    ({}, {"rope_freqs.weight": (1.0,) * 5}, ModelFileError, "rope_freqs.weight is 5 values; it must be a list of 4"),
]


@pytest.mark.parametrize(("scaling", "tensors", "kind", "message"), GGUF_REFUSED)
def test_gguf_values_refused(
    scaling: dict[str, Any], tensors: dict[str, tuple[float, ...]], kind: type[ModelError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        gguf(scaling, tensors)
    assert "\n" not in str(caught.value)


ANYTHING = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8) | st.lists(
    st.floats() | st.integers(), max_size=5
)  # fmt: skip


def taken_or_refused(read: Any) -> None:
    """Any outcome but one: an error that is not ours, or longer than a line."""
    refusal, found = "", Rope(1e4, UNSCALED, 1)
    try:
        found = read()
    except ModelError as reason:
        refusal = str(reason)
    assert "\n" not in refusal
    assert len(refusal) < 400
    assert 1 <= found.context_length <= 1 << 26
    assert 0 < found.scaling.attention < float("inf")


@given(st.sampled_from([HF_YARN, HF_LLAMA3, HF_LONG]), st.sampled_from(HF_KEYS), ANYTHING)
def test_any_folder_value_is_taken_or_refused_in_one_line(scaling: dict[str, Any], key: str, value: Any) -> None:
    taken_or_refused(lambda: hf(scaling | {key: value}))


@given(st.sampled_from(["linear", "yarn", "longrope"]), st.sampled_from(GGUF_KEYS), ANYTHING)
def test_any_gguf_value_is_taken_or_refused_in_one_line(kind: str, key: str, value: Any) -> None:
    tensors = LONG_TENSORS if kind == "longrope" else {}
    taken_or_refused(lambda: gguf(YARN | {"type": kind, key: value}, tensors))
