"""VaultGemma: Gemma 2 without the norms behind its blocks."""

from typing import Any

from sporelm.models.blocks import GatedMLP, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma import NORMS, USUAL, embedded, less_one
from sporelm.models.families.gemma2 import CAPS, NUMBERS, scalar, scaled, unscaled
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HF, Kind, Names, changed
from sporelm.weights.windows import every, windowed

NORM = Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight")


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = scaled(embedded(config, values, kind), values, kind, 0)
    return windowed(config, values, 2) if kind == HF else config


def _words(config: ModelConfig) -> dict[str, Any]:
    """Silence means caps."""
    caps = {"attn_logit_softcapping": config.score_cap, "final_logit_softcapping": config.logit_cap}
    return scalar(config) | caps


@architecture(
    Family(
        "vaultgemma",
        (HfClass("VaultGemmaForCausalLM", "vaultgemma", NUMBERS, (("sliding_window", "window"),)),),
        fields(*CAPS),
        changed(COMMON, *NORMS, *less_one(NORM)),
        only={"hidden_activation": ("gelu_pytorch_tanh",), **USUAL},
        finish=_finished,
        full_layers=every(2),
        tells_layers=True,
        words=_words,
        unsaid=lambda config: unscaled(config, 0),
    )
)
class VaultGemma(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Google 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu_tanh"))
