"""gpt-oss: experts with biases and clamped gates, a sink for each head, and a window in every other layer."""

from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import MLP, expert_fields
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import every_other, expert_rows
from sporelm.weights.names import COMMON, HF, NORM_BETWEEN, Kind, Names, Stored, Table, changed
from sporelm.weights.windows import every, windowed

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "attention_bias": True,
}
FLAGS = (("attention_bias", "attention_bias"), ("sliding_window", "window"))


def _names() -> Table:
    """Folders hold [experts, in, out], gate and up by turns; in MXFP4 [experts, out, in]."""
    found = [
        NORM_BETWEEN,
        Names("layers.{}.attn_sinks.weight", "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks"),
        *(
            Names(f"layers.{{}}.ffn_gate_inp.{part}", f"blk.{{}}.ffn_gate_inp.{part}", f"{MLP}router.{part}")
            for part in ("weight", "bias")
        ),
    ]
    parts = {"gate": ("gate_up", 0), "up": ("gate_up", 1), "down": ("down", None)}
    for part, (hf, turn) in parts.items():
        rows = None if turn is None else every_other(turn, expert_rows)
        for end, name, matrix in (("weight", "", True), ("bias", "_bias", False)):
            stored = Stored(f"{MLP}experts.{hf}_proj{name}", rows=rows, transposed=matrix, inner=True)
            found.append(Names(f"layers.{{}}.ffn_{part}_exps.{end}", f"blk.{{}}.ffn_{part}_exps.{end}", stored))
    return tuple(found)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return windowed(config, values, 2, window=None) if kind == HF else config


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """A folder that says nothing of rotary positions means YaRN."""
    if values.get("rope_scaling") or values.get("rope_parameters"):
        return values
    return values | {"rope_scaling": YARN | {"original_max_position_embeddings": 4096}}


def _words(config: ModelConfig) -> dict[str, Any]:
    kinds = ["full_attention" if layer in config.full_layers else "sliding_attention" for layer in range(config.layers)]
    return {"layer_types": kinds}


@architecture(
    Family(
        "gpt-oss",
        (HfClass("GptOssForCausalLM", "gpt_oss", DEFAULTS, FLAGS),),
        fields(
            *ATTENTION_BIAS,
            *expert_fields(count="num_local_experts", used="num_experts_per_tok", ffn="intermediate_size"),
        ),
        changed(COMMON, *_names()),
        fixed={"experts.scores": "softmax_of_chosen", "experts.bias": True, "experts.clamp": (1.702, 7.0)},
        only={"hidden_act": ("silu",), "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
        finish=_finished,
        words=_words,
        reworded=_reworded,
        full_layers=every(2),
        tells_layers=True,
        yarn_truncates=False,
    )
)
class GptOss(Decoder):
    """Norms in front, attention with a sink for each head, and a mixture (OpenAI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), sinks=True)
        return pre_norm(config, index, attention)
