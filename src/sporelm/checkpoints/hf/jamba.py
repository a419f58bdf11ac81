"""Hugging Face folders of Jamba."""

from collections.abc import Set
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.jamba import JAMBA_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, expert_tensors
from sporelm.checkpoints.mamba_keys import mamba_hf_keys, mamba_hf_tensors, with_mamba_sizes, with_time_step_rank
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.jamba import Jamba, JambaConfig
from sporelm.models.config import MAX_LAYERS, ModelConfig

MLP: Final = f"{LAYER}feed_forward."
# The norms and the feed-forward block.
JAMBA_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    "output_norm.weight": "model.final_layernorm.weight",
    "layers.{}.ffn_norm.weight": f"{LAYER}pre_ff_layernorm.weight",
    **{
        f"layers.{{}}.ffn_{name}.{part}": f"{MLP}{name}_proj.{part}"
        for name in ("gate", "up", "down")
        for part in PARTS
    },
}
PERIODS: Final = {"attn_layer": (8, 4), "expert_layer": (2, 1)}  # period and offset


def read_periodic_layers(values: ConfigValues, name: str, layers: int) -> frozenset[int]:
    """Return the layers of a period and an offset."""
    default_period, default_offset = PERIODS[name]
    period = values.integer(f"{name}_period", 1, MAX_LAYERS, default_period)
    offset = values.integer(f"{name}_offset", 0, period - 1, default_offset)
    return frozenset(range(offset, layers, period))


def period_json(name: str, chosen: Set[int], layers: int) -> dict[str, int]:
    """Return the period and the offset of layers. Raises UnsupportedModel unless they are at regular intervals."""
    first, *others = [*sorted(chosen), layers]
    period = others[0] - first if len(others) > 1 else layers + 1
    if chosen != {*range(first, layers, period)} or first >= period:
        raise UnsupportedModel(
            f"{name}s {sorted(chosen)} of {layers} are not at regular intervals, which config.json cannot represent"
        )
    return {f"{name}_period": period, f"{name}_offset": first}


def with_expert_count(values: ConfigValues) -> ConfigValues:
    """Return the values with `num_experts`, 0 for a single one."""
    keys = ("num_experts", "num_local_experts")
    counts = [values.get(key) for key in keys if values.has(key)]
    count = counts[0] if counts else 16
    return values.with_changes({"num_experts": 0 if count == 1 else count})


@register
class JambaForCausalLM(HfSchema):
    """Jamba."""

    model_type = "jamba"
    architecture = Jamba
    keys = hf_keys(
        *mamba_hf_keys(
            conv_kernel="mamba_d_conv",
            state_size="mamba_d_state",
            time_step_rank="mamba_dt_rank",
            expand="mamba_expand",
            has_bias="mamba_proj_bias",
            has_conv_bias="mamba_conv_bias",
        ),
        *hf_expert_keys(count="num_experts", used="num_experts_per_tok", optional=True),
    )
    class_keys = {"mamba_proj_bias": "mamba.has_bias", "mamba_conv_bias": "mamba.has_conv_bias"}
    defaults = {
        "num_key_value_heads": 8,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "max_position_embeddings": 262144,
    }
    constants = JAMBA_CONSTANTS
    supported = {"hidden_act": ("silu",), "mamba_inner_layernorms": (True,), "sliding_window": (None,)}
    tensors = {
        **JAMBA_TENSORS,
        **expert_tensors(MLP),
        "layers.{}.ffn_gate_inp.weight": f"{MLP}router.weight",
        **mamba_hf_tensors(f"{LAYER}mamba."),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_time_step_rank(with_expert_count(values), "mamba_dt_rank")
        config = super().config_from_json(values, dtype)
        assert isinstance(config, JambaConfig)
        config, layers = with_mamba_sizes(config, config.mamba.inner_size), config.layers
        attention_layers = read_periodic_layers(values, "attn_layer", layers)
        dense = frozenset(range(layers)) - read_periodic_layers(values, "expert_layer", layers)
        experts = config.experts and replace(config.experts, dense=dense)
        return replace(config, attention_layers=attention_layers, experts=experts)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, JambaConfig)
        layers, experts = config.layers, config.experts
        found = period_json("attn_layer", config.attention_layers, layers)
        if experts is None:
            return found | {"num_experts": 1, "num_experts_per_tok": 1}
        return found | period_json("expert_layer", {layer for layer in range(layers) if experts.at(layer)}, layers)
