"""Hugging Face folders of Mamba 2."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf.mamba import BACKBONE_TENSORS, LAYER
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.mamba_keys import mamba2_hf_keys, mamba2_hf_tensors, with_hf_mamba2_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mamba2 import Mamba2, Mamba2Config
from sporelm.models.config import ModelConfig


@register
class Mamba2ForCausalLM(HfSchema):
    """Mamba 2."""

    model_type = "mamba2"
    architecture = Mamba2
    keys = hf_keys(
        *mamba2_hf_keys(
            conv_kernel="conv_kernel",
            num_heads="num_heads",
            num_groups="n_groups",
            state_size="state_size",
            head_dim="head_dim",
            expand="expand",
            has_bias="use_bias",
            has_conv_bias="use_conv_bias",
        ),
        Key("eps", "layer_norm_epsilon", "f32"),
        without=("heads", "kv_heads", "head_dim", "ffn"),
    )
    class_keys = {"use_bias": "mamba.has_bias", "use_conv_bias": "mamba.has_conv_bias"}
    defaults = {
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "expand": 2,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 1 << 20,
    }
    constants = {"rotary": 0}
    tensors = {**BACKBONE_TENSORS, **mamba2_hf_tensors(f"{LAYER}mixer.")}
    has_attention = False

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Mamba2Config)
        return with_hf_mamba2_sizes(config, values)
