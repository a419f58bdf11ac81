"""Hugging Face folders of Mamba 1 and Falcon-Mamba."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.mamba_keys import mamba_hf_keys, mamba_hf_tensors, with_mamba_sizes, with_time_step_rank
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.mamba import Mamba, MambaConfig
from sporelm.models.config import ModelConfig

LAYER: Final = "backbone.layers.{}."
BACKBONE_TENSORS: Final[TensorTable] = {
    "embedding.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
    "layers.{}.attn_norm.weight": f"{LAYER}norm.weight",
}


@register
class MambaForCausalLM(HfSchema):
    """Mamba 1. Some folders have another name for the embedding."""

    model_type = "mamba"
    architecture = Mamba
    keys = hf_keys(
        *mamba_hf_keys(
            conv_kernel="conv_kernel",
            state_size="state_size",
            time_step_rank="time_step_rank",
            expand="expand",
            has_bias="use_bias",
            has_conv_bias="use_conv_bias",
            inner_size="intermediate_size",
        ),
        Key("eps", "layer_norm_epsilon", "f32"),
        Key("mamba.norm_eps", "mixer_rms_eps", "f32", 0.0, 1.0, OPTIONAL),
        without=("heads", "kv_heads", "head_dim", "ffn"),
    )
    class_keys = {"use_bias": "mamba.has_bias", "use_conv_bias": "mamba.has_conv_bias"}
    defaults = {
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": True,
    }
    constants = {"rotary": 0}
    tensors = {
        **BACKBONE_TENSORS,
        "embedding.weight": ("backbone.embeddings.weight", "backbone.embedding.weight"),
        **mamba_hf_tensors(f"{LAYER}mixer."),
    }
    has_attention = False
    norms = ""  # of time steps, B and C

    def class_for(self, config: ModelConfig) -> HfSchema:
        assert isinstance(config, MambaConfig)
        return FalconMambaForCausalLM() if config.mamba.norms else MambaForCausalLM()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(with_time_step_rank(values, "time_step_rank"), dtype)
        assert isinstance(config, MambaConfig)
        config = with_mamba_sizes(config, config.mamba.inner_size)
        norm_eps = (config.mamba.norm_eps or config.eps) if self.norms else None
        return replace(config, mamba=replace(config.mamba, norms=self.norms, norm_eps=norm_eps))


@register
class FalconMambaForCausalLM(MambaForCausalLM):
    """Falcon-Mamba: time steps, B and C are normalized without weights."""

    model_type = "falcon_mamba"
    defaults = {**MambaForCausalLM.defaults, "mixer_rms_eps": 1e-6}
    norms = "bare"
