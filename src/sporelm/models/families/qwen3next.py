"""Qwen3-Next: three layers of gated delta nets to one of gated attention, all with experts and a shared one."""

from sporelm.checkpoints.experts import FUSED_EXPERTS, MLP, expert_fields, expert_names, meaning, shared_names
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import grouped
from sporelm.checkpoints.tensor_names import COMMON, GGUF, Kind, Names, Stored, changed
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
from sporelm.models.families.qwen2moe import EXPERTS, GATE
from sporelm.models.families.qwen2moe import finished as with_dense_layers
from sporelm.models.registry import architecture

NET = "model.layers.{}.linear_attn."
MIXED, OLDER = f"{NET}in_proj_qkvz.weight", "blk.{}.ssm_in.weight"


SIZES = (lambda c: c.own.key_dim, lambda c: c.own.key_dim, *[lambda c: c.own.inner // c.own.key_heads] * 2)


def _of_key_heads(tensor: str, *parts: int) -> Stored:
    """Parts of a tensor that has for each key head its query, key, values and what these are gated by."""
    return Stored(tensor, rows=grouped(parts, lambda c: c.own.key_heads, *SIZES))


def _small(name: str, part: int) -> Stored:
    """One of two parts of a tensor that has both for each key head, a number for each of its heads."""
    group = lambda c: c.own.heads // c.own.key_heads  # noqa: E731
    return Stored(name, rows=grouped((part,), lambda c: c.own.key_heads, group, group))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return with_dense_layers(finished(config, values, kind), values, kind)


DELTA = (
    Names("layers.{}.delta_qkv.weight", "blk.{}.attn_qkv.weight", _of_key_heads(MIXED, 0, 1, 2)),
    Names("layers.{}.delta_z.weight", "blk.{}.attn_gate.weight", _of_key_heads(MIXED, 3)),
    *(
        Names(
            f"layers.{{}}.delta_{part}.weight",
            _small("blk.{}.ssm_ba.weight", half),
            _small(f"{NET}in_proj_ba.weight", half),
        )
        for half, part in enumerate(("beta", "alpha"))
    ),
    Names(
        "layers.{}.delta_conv.weight",
        Stored("blk.{}.ssm_conv1d.weight", transposed=True),
        Stored(f"{NET}conv1d.weight", transposed=True, between=True),
    ),
    Names("layers.{}.delta.decay", "blk.{}.ssm_a", Stored(f"{NET}A_log", log=True)),
    Names("layers.{}.delta_dt.bias", "blk.{}.ssm_dt.bias", f"{NET}dt_bias"),
    Names("layers.{}.delta_norm.weight", "blk.{}.ssm_norm.weight", f"{NET}norm.weight"),
    Names("layers.{}.delta_o.weight", "blk.{}.ssm_out.weight", f"{NET}out_proj.weight"),
)
OTHERS = (
    Names("layers.{}.delta_qkv.weight", _of_key_heads(OLDER, 0, 1, 2), _of_key_heads(MIXED, 0, 1, 2)),
    Names("layers.{}.delta_z.weight", _of_key_heads(OLDER, 3), _of_key_heads(MIXED, 3)),
    *FUSED_EXPERTS,
)


@architecture(
    Family(
        "qwen3next",
        (
            HfClass(
                "Qwen3NextForCausalLM",
                "qwen3_next",
                {**DEFAULTS, "num_key_value_heads": 2, "norm_topk_prob": True, "num_experts": 512}
                | {"num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
                (("norm_topk_prob", "experts.renormalize"),),
            ),
        ),
        fields(*DELTA_FIELDS, *EXPERTS, *expert_fields(shared_ffn="shared_expert_intermediate_size")),
        changed(COMMON, *NORMS, *gated_queries(), *DELTA, *expert_names(), *shared_names(f"{MLP}shared_expert."), GATE),
        others={GGUF: OTHERS},
        fixed={"experts.shared_gate": True, "experts.renormalize": True},
        only=USUAL,
        finish=_finished,
        said=lambda config: said(config, "qwen3next"),
        words=words,
        unsaid=meaning(renormalize=True),
        ignored=("mtp.*",),
        partial_rotary=True,
        further_layers=True,
        own=DeltaHeads,
    )
)
class Qwen3Next(Decoder):
    """Qwen3-MoE's layer with a gated delta net in place of most of its attention, which has a gate (Qwen team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mixer(config, index), feed_forward(f"layers.{index}", config, index))
