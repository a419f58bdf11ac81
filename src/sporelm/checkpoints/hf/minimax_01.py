"""Hugging Face folders of MiniMax-Text-01 and MiniMax-M1, with the keys of transformers or MiniMax's own."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.delta_net_keys import LAYER_TYPES
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.minimax_01 import MAX_SCALE, MIN_SCALE, MINIMAX_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, LAYER, expert_tensors
from sporelm.checkpoints.hybrid_layers import read_attention_layers
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.minimax_01 import MiniMax01, MiniMax01Config
from sporelm.models.config import ModelConfig

# Blocks in the keys of transformers -> in those of MiniMax.
BLOCKS: Final = {
    "full_attn": "layernorm_full_attention",
    "linear_attn": "layernorm_linear_attention",
    "mlp": "layernorm_mlp",
}
SCALE_ATTRIBUTES: Final = {
    "full_attn": "attention_residual_scale",
    "linear_attn": "lightning_residual_scale",
    "mlp": "mlp_residual_scale",
}


def with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return the values with transformers' keys for those of MiniMax, and with the rotary dimensions as a share of a
    head. Raises UnsupportedModel for an impossible number of them."""
    found = dict(values.values)
    for block, key in BLOCKS.items():
        for factor in ("alpha", "beta"):
            if (name := f"{key}_{factor}") in values.values:
                found[f"{block}_{factor}_factor"] = values.get(name)
    kinds = values.get("attn_type_list")
    if isinstance(kinds, list) and values.get("layer_types") is None:
        found["layer_types"] = [LAYER_TYPES[kind] if kind in (0, 1) else kind for kind in kinds]
    rotary, head_dim = values.get("rotary_dim"), values.get("head_dim")
    if rotary is None or rotary == head_dim:
        return values.with_values(found)
    if type(head_dim) is not int or type(rotary) is not int or not 0 < rotary < head_dim:
        what = (
            f"rotary_dim is {format_value(rotary)}; it must be an integer from 1 to head_dim {format_value(head_dim)}"
        )
        raise UnsupportedModel(what)
    return values.with_values({"partial_rotary_factor": rotary / head_dim} | found)


@register
class MiniMaxForCausalLM(HfSchema):
    """MiniMax in transformers, which rotates whole heads. By default every second layer has lightning attention.
    transformers stores decays in folders; they follow from the configuration."""

    model_type = "minimax"
    architecture = MiniMax01
    keys = hf_keys(
        *hf_expert_keys(count="num_local_experts", used="num_experts_per_tok"),
        *(
            Key(attribute, f"{block}_alpha_factor", "f32", MIN_SCALE, MAX_SCALE, 1.0)
            for block, attribute in SCALE_ATTRIBUTES.items()
        ),
    )
    defaults = {
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
    }
    constants = MINIMAX_ROUTING
    supported = {
        **{f"{block}_beta_factor": (1,) for block in BLOCKS},
        "hidden_act": ("silu",),
        "sliding_window": (None,),
        "postnorm": (True,),
        "shared_intermediate_size": (0,),
        "scoring_func": ("softmax",),
    }
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(f"{LAYER}block_sparse_moe.", ("w1", "w3", "w2")),
        "layers.{}.lightning_qkv.weight": f"{ATTENTION}qkv_proj.weight",
        "layers.{}.lightning_gate.weight": f"{ATTENTION}output_gate.weight",
        "layers.{}.lightning_norm.weight": f"{ATTENTION}norm.weight",
        "layers.{}.lightning_o.weight": f"{ATTENTION}out_proj.weight",
    }
    ignored_tensors = tuple(
        f"{ATTENTION}{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
    )
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_transformers_keys(values)
        config = super().config_from_json(values, dtype)
        self.check_rotary(config, values)
        layer_types = values.get("layer_types")
        if layer_types is None:
            layer_types = [LAYER_TYPES[layer % 2 == 0] for layer in range(config.layers)]
        assert isinstance(config, MiniMax01Config)
        return replace(config, attention_layers=read_attention_layers(values, layer_types, config.layers))

    def check_rotary(self, config: ModelConfig, values: ConfigValues) -> None:
        """Raise UnsupportedModel if only a part of each head is rotated."""
        if config.rotary != config.head_dim:
            what = f"{self.class_name} rotates whole heads, not {config.rotary} of {config.head_dim} dimensions"
            others = f"{MiniMaxM1ForCausalLM.__name__} and {MiniMaxText01ForCausalLM.__name__}"
            raise UnsupportedModel(f"{values.where}: {what}; {others} rotate a part")

    def class_for(self, config: ModelConfig) -> HfSchema:
        return MiniMaxForCausalLM() if config.rotary == config.head_dim else MiniMaxM1ForCausalLM()

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, MiniMax01Config)
        kinds = [int(layer in config.attention_layers) for layer in range(config.layers)]
        found: dict[str, Any] = {"attn_type_list": kinds, "layer_types": [LAYER_TYPES[kind] for kind in kinds]}
        for block, key in BLOCKS.items():
            found |= {f"{key}_alpha": getattr(config, SCALE_ATTRIBUTES[block]), f"{key}_beta": 1.0}
        return found if config.rotary == config.head_dim else {**found, "rotary_dim": config.rotary, "postnorm": True}


@register
class MiniMaxM1ForCausalLM(MiniMaxForCausalLM):
    """MiniMax-M1 in MiniMax's own folders, which may rotate a part of each head."""

    model_type = "minimax_m1"

    def check_rotary(self, config: ModelConfig, values: ConfigValues) -> None:
        pass


@register
class MiniMaxText01ForCausalLM(MiniMaxM1ForCausalLM):
    """MiniMax-Text-01 in MiniMax's own folders."""

    model_type = "minimax_text_01"
