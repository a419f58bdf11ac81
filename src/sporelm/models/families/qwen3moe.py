"""Qwen3-30B-A3B and its kin: Qwen3 with experts."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import expert_names, meaning
from sporelm.checkpoints.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, changed
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.qwen2moe import EXPERTS, finished
from sporelm.models.registry import architecture


def counted(values: dict[str, Any]) -> dict[str, Any]:
    """How many experts there are by its older name: folders that transformers 5 writes have another."""
    found = values.get("num_local_experts")
    return values if found is None else {**values, "num_experts": found}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """GGUF files mean weights of experts that sum to one."""
    config = finished(config, values, kind)
    if kind == HF or config.experts is None:
        return config
    return replace(config, experts=replace(config.experts, renormalize=True))


@architecture(
    Family(
        "qwen3moe",
        (
            HfClass(
                "Qwen3MoeForCausalLM",
                "qwen3_moe",
                {"num_key_value_heads": 4, "max_position_embeddings": 32768}
                | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
                (("attention_bias", "attention_bias"), ("norm_topk_prob", "experts.renormalize")),
            ),
        ),
        fields(*EXPERTS, *ATTENTION_BIAS),
        changed(COMMON, *HEAD_NORMS, *expert_names()),
        finish=_finished,
        unsaid=meaning(renormalize=True),
        reworded=counted,
        windowless=True,
    )
)
class Qwen3Moe(Decoder):
    """Qwen3's layer with a mixture in place of its feed-forward block (Yang et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention)
