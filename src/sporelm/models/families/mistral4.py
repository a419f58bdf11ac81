"""Mistral Small 4 (text): latent attention whose queries grow with their position, and experts in every layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import FUSED_EXPERTS, MLP, V3_FIELDS, fused_names, shared_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, Kind, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.mistral3 import BETA, USUAL, grown
from sporelm.models.registry import architecture
from sporelm.models.rope_scaling import Yarn

GROWTH = "query_growth"  # the table of what queries are multiplied by, at each position
LENGTH = "attention.temperature_length"
USUAL4 = USUAL | {"rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192}
NUMBERS: dict[str, Any] = {"kv_lora_rank": 256, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "v_head_dim": 128}
NUMBERS |= {"qk_nope_head_dim": 64, "n_routed_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1}
NUMBERS |= {"moe_intermediate_size": 2048, "norm_topk_prob": True, "max_position_embeddings": 1 << 20}
NOT_OURS = (BETA, "max_position_embeddings", "partial_rotary_factor")


@dataclass(frozen=True)
class TemperedLatent(latent.LatentShape):
    """With how fast queries grow: 1 + beta * log(1 + how often YaRN's original context fits before them)."""

    beta: float = 0.0


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters hold numbers that are none of theirs."""
    given = values.get("rope_parameters") or USUAL4
    if not isinstance(given, Mapping):
        return latent.reworded(values)
    inner = {name: value for name, value in given.items() if name not in NOT_OURS}
    return latent.reworded(values) | {"rope_parameters": inner, BETA: given.get(BETA)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, experts = latent.finished(config, values, kind), config.experts
    assert experts is not None
    if config.own.beta and not isinstance(config.rope_scaling, Yarn):
        raise UnsupportedModel(f"{values.where}: queries that grow with their position need YaRN's original context")
    return latent.turned(config, values, kind)


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    found, scaling = latent.said(config, "mistral4", absorbed=True), config.rope_scaling
    return found | ({f"mistral4.{LENGTH}": ("u32", scaling.original)} if isinstance(scaling, Yarn) else {})


def _words(config: ModelConfig) -> dict[str, Any]:
    found, scaling = latent.words(config), config.rope_scaling
    inner = {**found.pop("rope_scaling", {"rope_type": "default"}), "rope_theta": config.rope_theta}
    if isinstance(scaling, Yarn):
        inner[BETA] = config.own.beta
    return found | {"rope_scaling": None, "rope_parameters": inner, "head_dim": config.head_dim}


@architecture(
    Family(
        "mistral4",
        (HfClass("Mistral4ForCausalLM", "mistral4", NUMBERS, (("norm_topk_prob", "experts.renormalize"),)),),
        fields(
            *latent.LATENT_FIELDS,
            *V3_FIELDS,
            Field("own.beta", "attention.temperature_scale", "f32", BETA, 0, 100, 0.0),
            without=("window",),
        ),
        changed(
            COMMON,
            *latent.LATENT_NAMES,
            *fused_names(f"{MLP}gate.weight", f"{MLP}experts.gate_up_proj", f"{MLP}experts.down_proj"),
            *shared_names(),
        ),
        others={"gguf": (*latent.UNSPLIT, *FUSED_EXPERTS)},
        fixed={"rope_style": "adjacent", "experts.group_score": "sum_of_two", "experts.epsilon": 1e-20},
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=_reworded,
        said=_said,
        words=_words,
        unsaid=latent.unsaid_of_turned,
        partial_rotary=True,
        own=TemperedLatent,
    )
)
class Mistral4(Decoder):
    """DeepSeek V2's layer (Mistral AI 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        growth = GROWTH if config.own.beta else ""
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config, config.own, growth=growth))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        tables = super().tables(context)
        if (growth := grown(self.config, context)) is not None:
            tables[GROWTH] = growth.astype(np.float32)
        return tables
