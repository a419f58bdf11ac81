"""Qwen3.5, its text model: Qwen3-Next's layer with a plain feed-forward block."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sporelm.checkpoints.beside_vision import OTHERS, text_names, text_part
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, HF, Names, Stored, Table, changed
from sporelm.models.blocks import DeltaHeads, Layer, feed_forward, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.delta_fields import (
    DEFAULTS,
    DELTA_FIELDS,
    NORMS,
    USUAL,
    finished,
    gated_queries,
    mixer,
    said,
    words,
)
from sporelm.models.registry import architecture

NET = "model.layers.{}.linear_attn."
SECTIONS = [11, 11, 10, 0]  # of M-RoPE, whose positions are all the same in a text


def _in_turn(unit: Callable[[DeltaHeads], int], before: Callable[[DeltaHeads], int] = lambda own: 0) -> Any:
    """Rows in the order of GGUF files: heads that share a key head are neighbours in folders, and take turns there."""

    def rows(config: ModelConfig) -> Any:
        own: DeltaHeads = config.own
        heads = np.arange(own.heads).reshape(own.key_heads, -1).T.reshape(-1, 1)
        turned = before(own) + (heads * unit(own) + np.arange(unit(own))).reshape(-1)
        return np.concatenate([np.arange(before(own)), turned])

    return rows


EACH, VALUES = _in_turn(lambda own: 1), _in_turn(lambda own: own.inner // own.heads)
MIXED = _in_turn(lambda own: own.inner // own.heads, lambda own: 2 * own.key_heads * own.key_dim)


def named(name: str, gguf: str | Stored, hf: str, **form: Any) -> Names:
    return Names(f"layers.{{}}.{name}", gguf, Stored(f"{NET}{hf}", **form))


TAPS = Stored("blk.{}.ssm_conv1d.weight", transposed=True)
DELTA: Table = (
    named("delta_qkv.weight", "blk.{}.attn_qkv.weight", "in_proj_qkv.weight", rows=MIXED),
    named("delta_z.weight", "blk.{}.attn_gate.weight", "in_proj_z.weight", rows=VALUES),
    named("delta_beta.weight", "blk.{}.ssm_beta.weight", "in_proj_b.weight", rows=EACH),
    named("delta_alpha.weight", "blk.{}.ssm_alpha.weight", "in_proj_a.weight", rows=EACH),
    named("delta_conv.weight", TAPS, "conv1d.weight", transposed=True, between=True, columns=MIXED),
    named("delta.decay", "blk.{}.ssm_a", "A_log", log=True, rows=EACH),
    named("delta_dt.bias", "blk.{}.ssm_dt.bias", "dt_bias", rows=EACH),
    named("delta_norm.weight", "blk.{}.ssm_norm.weight", "norm.weight"),
    named("delta_o.weight", "blk.{}.ssm_out.weight", "out_proj.weight", columns=VALUES),
)
NAMES = changed(COMMON, *NORMS, *gated_queries(), *DELTA)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json; without what rotary positions say of images."""
    values = text_part(values)
    if isinstance(rope := values.get("rope_parameters"), Mapping):
        values = {**values, "rope_parameters": {key: rope[key] for key in rope if not key.startswith("mrope")}}
    return values


OPTIONS: dict[str, Any] = {"only": {**USUAL, "attn_output_gate": (True,)}, "reworded": reworded, "words": words}
OPTIONS |= {"partial_rotary": True, "further_layers": True, "own": DeltaHeads}
OPTIONS["ignored"] = ("mtp.*", "model.mtp.*", *OTHERS)


def told(gguf: str) -> Callable[[ModelConfig], dict[str, tuple[str, Any]]]:
    return lambda config: {**said(config, gguf), f"{gguf}.rope.dimension_sections": ("[i32]", SECTIONS)}


@architecture(
    Family(
        "qwen35",
        (
            HfClass("Qwen3_5ForCausalLM", "qwen3_5_text", {**DEFAULTS, "num_key_value_heads": 4}),
            HfClass("Qwen3_5ForConditionalGeneration", "qwen3_5", {**DEFAULTS, "num_key_value_heads": 4}),
        ),
        fields(*DELTA_FIELDS),
        NAMES,
        others={HF: text_names(NAMES)},
        fixed={"own.order": "all"},
        finish=finished,
        said=told("qwen35"),
        **OPTIONS,
    )
)
class Qwen35(Decoder):
    """Norms in front of a gated delta net, or of gated attention, and of the feed-forward block (Qwen team 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mixer(config, index), feed_forward(f"layers.{index}", config, index))
