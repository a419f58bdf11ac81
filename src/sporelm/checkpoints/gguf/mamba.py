"""GGUF files of Mamba 1 and Falcon-Mamba."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import EMBEDDING_TENSORS
from sporelm.checkpoints.mamba_keys import MAMBA_GGUF_KEYS, MAMBA_GGUF_TENSORS, with_gguf_mamba_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mamba import Mamba, MambaConfig
from sporelm.models.config import ModelConfig

HAS_NORMS = "ssm.dt_b_c_rms"


@register
class MambaGguf(GgufSchema):
    """`mamba`. llama.cpp reads one epsilon for all norms; our files also have that of time steps, B and C."""

    names = ("mamba",)
    architecture = Mamba
    keys = gguf_keys(
        *MAMBA_GGUF_KEYS,
        Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
        Key("mamba.norm_eps", "ssm.dt_b_c_rms_epsilon", "f32", 0.0, 1.0, OPTIONAL),
        without=("heads", "kv_heads", "head_dim", "ffn", "rotary", "window"),
    )
    constants = {"rotary": 0}
    tensors = {**EMBEDDING_TENSORS, "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight", **MAMBA_GGUF_TENSORS}
    has_attention = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        has_norms = gguf.values.flag(HAS_NORMS, False)
        config = with_gguf_mamba_sizes(config, gguf.values)
        assert isinstance(config, MambaConfig)
        norm_eps = (config.mamba.norm_eps or config.eps) if has_norms else None
        return replace(config, mamba=replace(config.mamba, norms="bare" if has_norms else "", norm_eps=norm_eps))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, MambaConfig)
        unused = ("attention.head_count", "feed_forward_length")
        has_norms = {f"mamba.{HAS_NORMS}": ("bool", config.mamba.norms == "bare")}
        return has_norms | {f"mamba.{key}": ("u32", 0) for key in unused}
