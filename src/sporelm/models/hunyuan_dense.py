"""Hunyuan, its dense models: queries and keys are normed head by head after they were rotated."""

from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.names import COMMON, Names, changed

HEAD_NORMS = tuple(
    Names(
        f"layers.{{}}.attn_{part}_norm.weight",
        f"blk.{{}}.attn_{part}_norm.weight",
        f"model.layers.{{}}.self_attn.{hf}_layernorm.weight",
    )
    for part, hf in (("q", "query"), ("k", "key"))
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """With an `alpha`, what they call dynamic is a larger base, whatever the context (NTK-aware scaling)."""
    for key in ("rope_scaling", "rope_parameters"):
        given = values.get(key)
        if isinstance(given, dict) and given.get("alpha") and given.get("rope_type", given.get("type")) == "dynamic":
            heads, width = values.get("num_attention_heads"), values.get("hidden_size")
            numbers = given["alpha"], given.get("rope_theta", values.get("rope_theta", 10000.0)), heads, width
            if not all(isinstance(number, int | float) and number > 0 for number in numbers):
                return values  # whoever reads them says what is wrong
            alpha, theta = numbers[:2]
            dim = values.get("head_dim") or width // heads
            return {**values, key: None, "rope_theta": theta * alpha ** (dim / (dim - 2))}
    return values


@architecture(
    Family(
        "hunyuan-dense",
        (
            HfClass(
                "HunYuanDenseV1ForCausalLM",
                "hunyuan_v1_dense",
                {"rms_norm_eps": 1e-5},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(*ATTENTION_BIAS, without=("window",)),
        changed(COMMON, *HEAD_NORMS),
        reworded=_reworded,
    )
)
class HunyuanDense(Decoder):
    """The Llama layer (Tencent Hunyuan team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads", norms_last=True))
