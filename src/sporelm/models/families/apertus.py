"""Apertus: Llama with norms on each head and a feed-forward block without a gate, whose activation is learned."""

from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.blocks.xielu_mlp import NUMBERS, XIELU_NAMES, XieluMLP, xielu_params
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.names import COMMON, HEAD_NORMS, Names, Param, changed
from sporelm.weights.rope_scaling import UNSCALED

# What transformers takes where config.json says nothing of rotary positions.
ROPE = {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192}
ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    told = values.get("rope_scaling") or values.get("rope_parameters")
    return values if told else {**values, "rope_scaling": None, "rope_parameters": ROPE}


def _words(config: ModelConfig) -> dict[str, Any]:
    """Silence would mean scaled positions."""
    plain = {"rope_type": "default", "rope_theta": config.rope_theta}
    return {"rope_parameters": plain} if config.rope_scaling == UNSCALED else {}


@architecture(
    Family(
        "apertus",
        (
            HfClass(
                "ApertusForCausalLM",
                "apertus",
                {"rms_norm_eps": 1e-5, "max_position_embeddings": 65536},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(*ATTENTION_BIAS, without=("window",)),
        changed(
            COMMON,
            *HEAD_NORMS,
            *XIELU_NAMES,
            *(
                Names(
                    f"layers.{{}}.{part}_norm.weight", f"blk.{{}}.{part}_norm.weight", f"model.layers.{{}}.{hf}.weight"
                )
                for part, hf in (("attn", "attention_layernorm"), ("ffn", "feedforward_layernorm"))
            ),
        ),
        only={"hidden_act": ("xielu",), "mlp_bias": (False,), "qk_norm": (True,), "post_norm": (False,)},
        reworded=_reworded,
        words=_words,
        listed={f"xielu.{part}": shape for part, shape in NUMBERS.items()},
    )
)
class Apertus(Decoder):
    """Norms in front, queries and keys normed head by head, xIELU (Swiss AI Initiative 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads"), XieluMLP(index, config))

    def params(self) -> list[Param]:
        return [*super().params(), *xielu_params(self.config.layers)]
