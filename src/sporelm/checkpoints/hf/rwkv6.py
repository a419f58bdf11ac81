"""Hugging Face folders of RWKV-6 with RWKV's own code."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.rwkv_keys import (
    MAX_POSITIONS,
    RWKV6_MIXES,
    RWKV_CONSTANTS,
    check_width,
    rwkv6_mix_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Squeeze
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.rwkv6 import Rwkv6, Rwkv6Config
from sporelm.models.config import ModelConfig

LAYER: Final = "rwkv.blocks.{}."
TIME_MIX: Final = f"{LAYER}attention."
CHANNEL_MIX: Final = f"{LAYER}feed_forward."
DIVISOR_KEY: Final = "head_size_divisor"
MAX_DIVISOR: Final = 1 << 10
EPS_OF_HEADS: Final = 1e-5  # times the squared divisor
# Parameters -> stored names, both without ".weight" and ".bias".
NORMS: Final = {
    "embedding_norm": "rwkv.blocks.0.pre_ln",
    "output_norm": "rwkv.ln_out",
    "layers.{}.attn_norm": f"{LAYER}ln1",
    "layers.{}.ffn_norm": f"{LAYER}ln2",
    "layers.{}.wkv_norm": f"{TIME_MIX}ln_x",
}


def with_shape(values: ConfigValues) -> ConfigValues:
    """Return the values with the number of heads, the width of the feed-forward block, and unlimited positions."""
    width, head_dim = values.get("hidden_size"), values.get("head_size")
    ffn, heads = values.get("intermediate_size"), None
    if ffn is None and type(width) is int:
        ffn = width * 7 // 64 * 32  # 3.5 widths, in whole 32s
    if type(width) is int and type(head_dim) is int and head_dim > 0:
        heads = width // head_dim
    shape = {"num_attention_heads": heads, "intermediate_size": ffn, "max_position_embeddings": MAX_POSITIONS}
    return values.with_changes(shape)


def ranks_of_class(width: int) -> tuple[int, int]:
    """Return the class's ranks of mixes and of decays; config.json lacks them."""
    return (64, 128) if width == 4096 else (32, 64)


@register
class Rwkv6ForCausalLM(HfSchema):
    """RWKV-6. `rescale_every` keeps half-precision numbers small and does not change results: rows are not halved
    here."""

    model_type = "rwkv6"
    architecture = Rwkv6
    keys = hf_keys(Key("head_dim", "head_size", "u32"), Key("eps", "layer_norm_epsilon", "f32"), without=("kv_heads",))
    defaults = {"layer_norm_epsilon": 1e-5, "head_size": 64, DIVISOR_KEY: 8}
    constants = RWKV_CONSTANTS
    supported = {}
    tensors = {
        "embedding.weight": "rwkv.embeddings.weight",
        "output.weight": "head.weight",
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in NORMS.items() for part in PARTS},
        **rwkv6_mix_tensors(TIME_MIX, RWKV6_MIXES),
        "layers.{}.wkv.bonus": f"{TIME_MIX}time_faaaa",
        **{
            f"layers.{{}}.wkv_{name[0]}.weight": f"{TIME_MIX}{name}.weight"
            for name in ("receptance", "key", "value", "gate", "output")
        },
        "layers.{}.ffn_mix.weight": StoredAs(f"{CHANNEL_MIX}time_maa_k", Squeeze((0, 1))),
        "layers.{}.ffn_mix_gate.weight": StoredAs(f"{CHANNEL_MIX}time_maa_r", Squeeze((0, 1))),
        "layers.{}.ffn_up.weight": f"{CHANNEL_MIX}key.weight",
        "layers.{}.ffn_down.weight": f"{CHANNEL_MIX}value.weight",
        "layers.{}.ffn_gate.weight": f"{CHANNEL_MIX}receptance.weight",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_shape(values)
        config = super().config_from_json(values, dtype)
        check_width(config, values, "attention_hidden_size")
        eps = EPS_OF_HEADS * values.integer(DIVISOR_KEY, 1, MAX_DIVISOR) ** 2
        token_shift, decay = ranks_of_class(config.width)
        assert isinstance(config, Rwkv6Config)
        return replace(config, group_norm_eps=eps, token_shift_lora_rank=token_shift, decay_lora_rank=decay)

    def class_for(self, config: ModelConfig) -> HfSchema:
        """Return the class. Raises UnsupportedModel for values that its folders cannot hold."""
        assert isinstance(config, Rwkv6Config)
        ranks = config.token_shift_lora_rank, config.decay_lora_rank
        what = f"its rows are halved every {config.rescale_every} layers" if config.rescale_every else ""
        if ranks != ranks_of_class(config.width):
            what = f"its ranks are {ranks[0]} and {ranks[1]}"
        if what:
            raise UnsupportedModel(
                f"{config.name}: {what}, which a folder of {self.class_name} cannot hold. Run the GGUF file instead"
            )
        return self

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Rwkv6Config)
        assert config.group_norm_eps is not None
        return {DIVISOR_KEY: round((config.group_norm_eps / EPS_OF_HEADS) ** 0.5), "rescale_every": 0}
