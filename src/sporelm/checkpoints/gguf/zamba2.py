"""GGUF files of Zamba2. llama.cpp does not support it; the names are ours."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import EMBEDDING_TENSORS, PARTS
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, read_attention_layers, with_types_by_kv_heads
from sporelm.checkpoints.mamba_keys import MAMBA2_GGUF_KEYS, MAMBA2_GGUF_TENSORS, with_gguf_mamba2_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.zamba2 import MAX_HYBRID_LAYERS, Zamba2, Zamba2Config
from sporelm.models.config import MAX_WIDTH, ModelConfig

HAS_ROPE: Final = "rope.scaling.finetuned"
# Of a shared block: parameters, and stored names.
SHARED: Final = "layers.{}.shared."
_STORED: Final = "blk.{}.shared."


def inner_tensors(mixer: TensorTable, stored_layer: str = "") -> TensorTable:
    """Return the tensors of the mixers after shared blocks.

    mixer          the table of the other mixers
    stored_layer   prefix of their stored names, followed by "inner."
    """
    found: TensorTable = {}
    for parameter, row in mixer.items():
        (stored,) = alternatives(row)
        name = stored.name.replace(stored_layer, f"{stored_layer}inner.", 1) if stored_layer else stored.name
        found[parameter.replace("layers.{}.", "layers.{}.inner.")] = StoredAs(name, *stored.transforms)
    return found


def with_hybrid_layers(config: Zamba2Config, values: ConfigValues, key: str, *, has_rope: bool) -> Zamba2Config:
    """Return the configuration with the layers that have a shared block, and with constants that files do not contain.

    key   of the list of layer types

    Raises UnsupportedModel for too many such layers.
    """
    hybrid_layers = read_attention_layers(values, values.get(key), config.layers)
    if len(hybrid_layers) > MAX_HYBRID_LAYERS:
        what = f"{len(hybrid_layers)} layers have a shared block; at most {MAX_HYBRID_LAYERS} are supported"
        raise UnsupportedModel(f"{values.where}: {what}")
    scales = replace(config.scales, attention=(config.head_dim / 2) ** -0.5)
    rotary = config.rotary if has_rope else 0
    return replace(config, hybrid_layers=hybrid_layers, scales=scales, rotary=rotary)


def _adapter_names() -> list[str]:
    """Return the names of the adapter matrices of shared blocks."""
    names = []
    for number in range(MAX_HYBRID_LAYERS):
        names += [f"attn_{part}_{end}{number}.weight" for part in "qkv" for end in "ab"]
        names += [f"ffn_a{number}.weight", f"ffn_gate_b{number}.weight", f"ffn_up_b{number}.weight"]
    return names


@register
class Zamba2Gguf(GgufSchema):
    """`zamba2`. Layers without a shared block have 0 KV heads."""

    names = ("zamba2",)
    architecture = Zamba2
    keys = gguf_keys(
        *MAMBA2_GGUF_KEYS,
        Key("head_dim", "attention.key_length", "u32"),
        Key("head_dim", "attention.value_length", "u32"),
        Key("mamba.min_time_step", "ssm.time_step_min", "f32", 0.0, 1.0, 0.001),
        Key("num_mem_blocks", "shared_block_count", "u32", 1, MAX_HYBRID_LAYERS),
        Key("adapter_rank", "adapter_rank", "u32", 1, MAX_WIDTH),
        Key("has_attention_adapters", "", "bool", tensor=f"{SHARED}attn_q_a0.weight"),
        Key("mlp_bias", "", "bool", tensor=f"{SHARED}ffn_down.bias"),
    )
    tensors = {
        **EMBEDDING_TENSORS,
        "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight",
        **MAMBA2_GGUF_TENSORS,
        "layers.{}.inner.attn_norm.weight": "blk.{}.inner.attn_norm.weight",
        **inner_tensors(MAMBA2_GGUF_TENSORS, "blk.{}."),
        "layers.{}.shared_out.weight": "blk.{}.shared_out.weight",
        **{
            f"{SHARED}{name}.weight": f"{_STORED}{name}.weight"
            for name in ("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v")
        },
        f"{SHARED}attn_o.weight": f"{_STORED}attn_output.weight",
        **{
            f"{SHARED}ffn_{name}.{part}": f"{_STORED}ffn_{name}.{part}"
            for name in ("gate", "up", "down")
            for part in PARTS
        },
        **{f"{SHARED}{name}": f"{_STORED}{name}" for name in _adapter_names()},
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Zamba2Config)
        config = with_gguf_mamba2_sizes(config, values)
        return with_hybrid_layers(config, values, "layer_types", has_rope=values.flag(HAS_ROPE, True))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Zamba2Config)
        return {
            **kv_heads_metadata(config, "zamba2", config.hybrid_layers),
            "zamba2.rope.dimension_count": ("u32", config.rotary or config.head_dim),
            f"zamba2.{HAS_ROPE}": ("bool", config.rotary > 0),
        }
