"""ERNIE 4.5's text mixtures: heads rotated by neighbours, a bias for the choice of experts, shared ones besides."""

from dataclasses import replace

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_LAYERS, ModelConfig
from sporelm.weights.experts import MLP, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HF, Kind, Stored, changed

DEFAULTS = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """`moe_layer_end_index` of config.json is the last layer with experts, -1 the last of all; GGUF files have the
    width of the block that every token goes through besides the number of its parts."""
    experts = config.experts
    assert experts is not None
    if kind != HF:
        return config
    last = values.integer("moe_layer_end_index", -1, MOST_LAYERS, -1)
    dense = frozenset(range(last + 1, config.layers)) if last >= 0 else frozenset()
    return replace(config, experts=replace(experts, dense=dense, shared_ffn=experts.shared * experts.ffn))


def _unsaid(config: ModelConfig) -> str:
    return "its last layers have no experts" if config.experts and config.experts.dense else ""


@architecture(
    Family(
        "ernie4_5-moe",
        (HfClass("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", DEFAULTS),),
        fields(
            *expert_fields(
                count="moe_num_experts",
                used="moe_k",
                ffn="moe_intermediate_size",
                shared="moe_num_shared_experts",
                shared_ffn="",
                leading="moe_layer_start_index",
                step="moe_layer_interval",
                choice_bias="",
            )
        ),
        changed(
            COMMON,
            *expert_names(),
            *shared_names(),
            choice_bias_name(Stored(f"{MLP}moe_statics.e_score_correction_bias", above=1)),
        ),
        fixed={"rope_style": "adjacent", "experts.choice_bias": True, "experts.renormalize": True},
        only={"hidden_act": ("silu",), "use_bias": (False,), "moe_norm_min": (1e-12,)},
        finish=_finished,
        unsaid=_unsaid,
        ignored=tuple(f"model.mtp_{part}.{{}}.*" for part in ("block", "emb_norm", "hidden_norm", "linear_proj")),
    )
)
class Ernie45Moe(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (Baidu ERNIE team 2025)."""
