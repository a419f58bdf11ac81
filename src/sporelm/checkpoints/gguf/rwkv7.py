"""GGUF files of RWKV-7."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.rwkv_keys import (
    GROUP_NORM_KEY,
    NORM_GGUF_TENSORS,
    RWKV_CONSTANTS,
    check_width,
    no_heads_metadata,
    with_heads_from_head_size,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Shape, Squeeze, TakePart, Unflatten
from sporelm.models.architectures.rwkv7 import GROUP_NORM_EPS, Rwkv7, Rwkv7Config
from sporelm.models.config import MAX_WIDTH, ModelConfig

RWKV7_MIXES: Final = "rwkvag"  # receptance, decays, keys, values, in-context learning rates, gate
LORA_PARTS: Final = (
    "_a.weight",
    ".weight",
    ".bias",
)  # of a low-rank product: the first matrix, the second, and its bias


@register
class Rwkv7Gguf(GgufSchema):
    """`rwkv7`. llama.cpp requires, but does not read, the value residual matrices of the first layer; some folders have
    them."""

    names = ("rwkv7",)
    architecture = Rwkv7
    keys = gguf_keys(
        Key("head_dim", "wkv.head_size", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("lora_ranks.decay", "attention.decay_lora_rank", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.iclr", "attention.iclr_lora_rank", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.value_residual", "attention.value_residual_mix_lora_rank", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.gate", "attention.gate_lora_rank", "u32", 1, MAX_WIDTH),
        GROUP_NORM_KEY,
        without=("kv_heads", "rotary", "window"),
    )
    constants = RWKV_CONSTANTS
    tensors = {
        "embedding.weight": "token_embd.weight",
        "output.weight": "output.weight",
        **NORM_GGUF_TENSORS,
        **{
            f"layers.{{}}.mix_{mix}.weight": StoredAs(
                "blk.{}.time_mix_lerp_fused.weight", TakePart(part, len(RWKV7_MIXES)), Squeeze((0, 1))
            )
            for part, mix in enumerate(RWKV7_MIXES)
        },
        **{
            f"layers.{{}}.wkv_{name[0]}.weight": f"blk.{{}}.time_mix_{name}.weight"
            for name in ("receptance", "key", "value", "output")
        },
        **{
            f"layers.{{}}.wkv_{name}{part}": f"blk.{{}}.time_mix_{letter}{number}.weight"
            for name, letter in (("decay", "w"), ("rate", "a"), ("share", "v"), ("gate", "g"))
            for part, number in zip(LORA_PARTS, (1, 2, 0), strict=True)
        },
        "layers.{}.wkv.removed": "blk.{}.time_mix_k_k.weight",
        "layers.{}.wkv.kept": "blk.{}.time_mix_k_a.weight",
        "layers.{}.wkv.bonus": StoredAs("blk.{}.time_mix_r_k.weight", Unflatten(optional=True)),
        **{f"layers.{{}}.wkv_norm.{part}": f"blk.{{}}.time_mix_ln.{part}" for part in PARTS},
        "layers.{}.ffn_mix.weight": "blk.{}.channel_mix_lerp_k.weight",
        "layers.{}.ffn_up.weight": "blk.{}.channel_mix_key.weight",
        "layers.{}.ffn_down.weight": "blk.{}.channel_mix_value.weight",
    }
    ignored_tensors = tuple(f"blk.{{}}.time_mix_v{number}.weight" for number in (1, 2, 0))

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_heads_from_head_size(gguf.values)
        config = super().config_from_metadata(gguf, values)
        check_width(config, values)
        assert isinstance(config, Rwkv7Config)
        return replace(config, group_norm_eps=config.group_norm_eps or GROUP_NORM_EPS)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return no_heads_metadata(self.names[0])

    def required_tensors(self, config: ModelConfig) -> dict[str, Shape]:
        assert isinstance(config, Rwkv7Config)
        width, rank = config.width, config.lora_ranks.iclr
        shapes: tuple[Shape, ...] = ((width,), (rank, width), (width, rank))
        return {f"blk.0.time_mix_v{number}.weight": shape for number, shape in enumerate(shapes)}
