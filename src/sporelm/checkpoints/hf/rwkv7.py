"""Hugging Face folders of RWKV-7 in the format of flash-linear-attention."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.rwkv7 import LORA_PARTS, RWKV7_MIXES
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import LAYER
from sporelm.checkpoints.rwkv_keys import MAX_POSITIONS, RWKV_CONSTANTS, check_width
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Squeeze, TakePart
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.rwkv7 import Rwkv7, Rwkv7Config
from sporelm.models.config import MAX_WIDTH, ModelConfig

TIME_MIX: Final = f"{LAYER}attn."
CHANNEL_MIX: Final = f"{LAYER}ffn."
LORA_ENDS: Final = ("0.weight", "2.weight", "2.bias")  # of `LORA_PARTS`
# Parameters -> stored names, both without ".weight" and ".bias".
NORMS: Final = {
    "embedding_norm": "model.layers.0.pre_norm",
    "output_norm": "model.norm",
    "layers.{}.attn_norm": f"{LAYER}attn_norm",
    "layers.{}.ffn_norm": f"{LAYER}ffn_norm",
    "layers.{}.wkv_norm": f"{TIME_MIX}g_norm",
}


def with_shape(values: ConfigValues) -> ConfigValues:
    """Return the values with the number of heads, the width of the feed-forward block, and unlimited positions."""
    width, head_dim, ffn = (values.get(key) for key in ("hidden_size", "head_dim", "intermediate_size"))
    heads, ratio = values.get("num_heads"), values.get("hidden_ratio")
    if type(width) is int and type(head_dim) is int and head_dim > 0:
        heads = width // head_dim
    if ffn is None and type(width) is int and isinstance(ratio, int | float):
        is_sane = width <= MAX_WIDTH and 0 < ratio < 1e3
        ffn = -(-int(width * ratio) // 32) * 32 if is_sane else None
    shape = {"num_attention_heads": heads, "intermediate_size": ffn, "max_position_embeddings": MAX_POSITIONS}
    return values.with_changes(shape)


@register
class RWKV7ForCausalLM(HfSchema):
    """RWKV-7. The first folders have all mixes in one tensor."""

    model_type = "rwkv7"
    architecture = Rwkv7
    keys = hf_keys(
        Key("head_dim", "head_dim", "u32"),
        Key("eps", "norm_eps", "f32"),
        Key("lora_ranks.decay", "decay_low_rank_dim", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.iclr", "a_low_rank_dim", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.value_residual", "v_low_rank_dim", "u32", 1, MAX_WIDTH),
        Key("lora_ranks.gate", "gate_low_rank_dim", "u32", 1, MAX_WIDTH),
        without=("kv_heads",),
    )
    defaults = {"norm_eps": 1e-5, "head_dim": 64, "hidden_ratio": 4.0}
    constants = RWKV_CONSTANTS
    supported = {"attn": (None,), "hidden_act": ("sqrelu",), "norm_first": (True,), "norm_bias": (True,)}
    tensors = {
        "embedding.weight": "model.embeddings.weight",
        "output.weight": "lm_head.weight",
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in NORMS.items() for part in PARTS},
        **{
            f"layers.{{}}.mix_{mix}.weight": (
                StoredAs(f"{TIME_MIX}x_{mix}", Squeeze((0, 1))),
                StoredAs(f"{TIME_MIX}x_x", TakePart(part, len(RWKV7_MIXES))),
            )
            for part, mix in enumerate(RWKV7_MIXES)
        },
        **{f"layers.{{}}.wkv_{name}.weight": f"{TIME_MIX}{name}_proj.weight" for name in "rkvo"},
        **{
            f"layers.{{}}.wkv_{name}{part}": f"{TIME_MIX}{letter}_lora.lora.{end}"
            for name, letter in (("decay", "w"), ("rate", "a"), ("share", "v"), ("gate", "g"))
            for part, end in zip(LORA_PARTS, LORA_ENDS, strict=True)
        },
        "layers.{}.wkv.removed": f"{TIME_MIX}k_k",
        "layers.{}.wkv.kept": f"{TIME_MIX}k_a",
        "layers.{}.wkv.bonus": f"{TIME_MIX}r_k",
        "layers.{}.ffn_mix.weight": f"{CHANNEL_MIX}x_k",
        "layers.{}.ffn_up.weight": f"{CHANNEL_MIX}key.weight",
        "layers.{}.ffn_down.weight": f"{CHANNEL_MIX}value.weight",
    }
    ignored_tensors = tuple(f"{TIME_MIX}v_lora.lora.{end}" for end in LORA_ENDS)  # of the first layer

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_shape(values)
        config = super().config_from_json(values, dtype)
        check_width(config, values, "value_dim")
        assert isinstance(config, Rwkv7Config)
        return replace(config, group_norm_eps=config.head_dim * config.eps)

    def class_for(self, config: ModelConfig) -> HfSchema:
        """Return the class. Raises UnsupportedModel for another epsilon of the group norm than its folders imply."""
        assert isinstance(config, Rwkv7Config)
        usual = config.head_dim * config.eps
        if abs(config.group_norm_eps - usual) > 1e-3 * usual:
            what = f"its group norm has the epsilon {config.group_norm_eps:.3g}"
            what += f", folders of {self.class_name} {usual:.3g}"
            raise UnsupportedModel(f"{config.name}: {what}. Run the GGUF file instead")
        return self

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"num_heads": config.heads, "hidden_act": "sqrelu", "value_dim": [config.width] * config.layers}
