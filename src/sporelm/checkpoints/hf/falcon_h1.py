"""Hugging Face folders of Falcon-H1."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.falcon_h1 import CONV_FACTORS, with_factors
from sporelm.checkpoints.gguf.granite import MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.hf.jamba import JAMBA_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import LAYER
from sporelm.checkpoints.mamba_keys import mamba2_hf_keys, mamba2_hf_tensors, with_hf_mamba2_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.falcon_h1 import FalconH1, FalconH1Config
from sporelm.models.config import MAX_WIDTH, ModelConfig

SSM_MULTIPLIERS: Final = "ssm_multipliers"
MLP_MULTIPLIERS: Final = "mlp_multipliers"
MULTIPLIERS: Final = {
    "scales.embedding": "embedding_multiplier",
    "scales.output": "lm_head_multiplier",
    "attention_in_multiplier": "attention_in_multiplier",
    "attention_out_multiplier": "attention_out_multiplier",
    "key_multiplier": "key_multiplier",
    "ssm_in_multiplier": "ssm_in_multiplier",
    "ssm_out_multiplier": "ssm_out_multiplier",
}


def with_mamba_sizes(values: ConfigValues) -> ConfigValues:
    """Return the values with the inner size and the width of heads, which a file may omit."""
    width, expand, heads = (values.get(key) for key in ("hidden_size", "mamba_expand", "mamba_n_heads"))
    inner, head_dim = values.get("mamba_d_ssm"), values.get("mamba_d_head") or "auto"
    if all(type(each) is int and each > 0 for each in (width, expand, heads)):
        inner = width * expand if inner is None else inner
        head_dim = inner // heads if head_dim == "auto" and type(inner) is int else head_dim
    return values.with_changes({"mamba_d_ssm": inner, "mamba_d_head": head_dim})


@register
class FalconH1ForCausalLM(HfSchema):
    """Falcon-H1."""

    model_type = "falcon_h1"
    architecture = FalconH1
    keys = hf_keys(
        *mamba2_hf_keys(
            conv_kernel="mamba_d_conv",
            num_heads="mamba_n_heads",
            num_groups="mamba_n_groups",
            state_size="mamba_d_state",
            head_dim="mamba_d_head",
            has_bias="mamba_proj_bias",
            has_conv_bias="mamba_conv_bias",
        ),
        *(Key(attribute, key, "f32", MIN_SCALE, MAX_SCALE, 1.0) for attribute, key in MULTIPLIERS.items()),
        *HF_ATTENTION_BIAS,
        Key("mlp_bias", "mlp_bias", "bool"),
        Key("has_mixer_norm", "mamba_rms_norm", "bool"),
        Key("is_norm_before_gate", "mamba_norm_before_gate", "bool", default=True),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "mamba_conv_bias": "mamba.has_conv_bias",
        "mamba_rms_norm": "has_mixer_norm",
        "mamba_norm_before_gate": "is_norm_before_gate",
    }
    defaults = {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_norm_before_gate": True,
    }
    supported = {"hidden_act": ("silu",), "mamba_proj_bias": (False,), "projectors_bias": (False,)}
    tensors = with_factors({**JAMBA_TENSORS, **mamba2_hf_tensors(f"{LAYER}mamba.")}, CONV_FACTORS)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_mamba_sizes(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, FalconH1Config)
        config = with_hf_mamba2_sizes(config, values)
        mamba = config.mamba
        if (inner_size := values.integer("mamba_d_ssm", 1, MAX_WIDTH)) != mamba.inner_size:
            what = f"{mamba.num_heads} heads of {mamba.head_dim}"
            raise ModelFileError(f"{values.where}: mamba_d_ssm is {inner_size}; it must be {what}")
        if values.has(SSM_MULTIPLIERS):
            config = replace(config, ssm_multipliers=values.numbers(SSM_MULTIPLIERS, 5, MIN_SCALE, MAX_SCALE))
        if values.has(MLP_MULTIPLIERS):
            gate, down = values.numbers(MLP_MULTIPLIERS, 2, MIN_SCALE, MAX_SCALE)
            config = replace(config, mlp_gate_multiplier=gate, mlp_down_multiplier=down)
        attention = None if config.key_multiplier == 1 else config.head_dim**-0.5 * config.key_multiplier
        return replace(config, scales=replace(config.scales, attention=attention))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, FalconH1Config)
        return {"mamba_d_ssm": config.mamba.inner_size, "mamba_proj_bias": False, "projectors_bias": False}
