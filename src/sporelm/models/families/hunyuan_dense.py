"""Hunyuan, its dense models: queries and keys are normed head by head after they were rotated."""

from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_HEAD_DIM, MOST_HEADS, MOST_WIDTH, ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, Names, changed
from sporelm.weights.rope_fields import MOST_THETA

HEAD_NORMS = tuple(
    Names(
        f"layers.{{}}.attn_{part}_norm.weight",
        f"blk.{{}}.attn_{part}_norm.weight",
        f"model.layers.{{}}.self_attn.{hf}_layernorm.weight",
    )
    for part, hf in (("q", "query"), ("k", "key"))
)


def rebased(values: dict[str, Any]) -> dict[str, Any]:
    """With an `alpha`, what they call dynamic is a larger base, whatever the context (NTK-aware scaling)."""
    for key in ("rope_scaling", "rope_parameters"):
        given = values.get(key)
        if isinstance(given, dict) and given.get("alpha") and given.get("rope_type", given.get("type")) == "dynamic":
            inner = Fields({**values, **given}, "config.json")
            width, heads = (
                inner.integer("hidden_size", 1, MOST_WIDTH),
                inner.integer("num_attention_heads", 1, MOST_HEADS),
            )
            dim = inner.integer("head_dim", 4, MOST_HEAD_DIM, width // heads)
            stretch = inner.number("alpha", 1.0, MOST_THETA) ** (dim / (dim - 2))
            return {**values, key: None, "rope_theta": inner.number("rope_theta", 1.0, MOST_THETA, 10000.0) * stretch}
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
        only={"hidden_act": ("silu",), "use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)},
        reworded=rebased,
    )
)
class HunyuanDense(Decoder):
    """The Llama layer (Tencent Hunyuan team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads", norms_last=True))
