"""Ling 3: delta nets with bounded decays to one layer of latent attention that is opened head by head."""

from dataclasses import replace

import numpy as np

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import MLP, V3_CHOICE, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import Family, fields
from sporelm.checkpoints.tensor_names import COMMON, GGUF, HF, Names, Stored, Table, changed, form_in
from sporelm.models.blocks import (
    ClampedMixture,
    DeltaNetShape,
    GatedLatentAttention,
    Layer,
    SplitDeltaNet,
    feed_forward,
    pre_norm,
)
from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.bailingmoe import ATTENTION
from sporelm.models.families.bailingmoe2 import EXPERTS
from sporelm.models.families.delta_fields import taps_apart
from sporelm.models.families.kimi_words import regrouped
from sporelm.models.families.ling3_words import (
    CLASSES,
    FIELDS,
    ONLY,
    LingShape,
    finished,
    reworded,
    said,
    unsaid,
    words,
)
from sporelm.models.registry import architecture

GATE = f"{ATTENTION}g_proj.weight"


def _named(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.{ours}", f"blk.{{}}.{gguf}", f"{ATTENTION}{hf}")


def _theirs(names: Names) -> Names:
    """The names of a weight of attention as its makers have them."""
    form = form_in(names, HF)
    name = form.name.replace("self_attn.o_proj", "attention.dense").replace("self_attn.", "attention.")
    return names._replace(hf=replace(form, name=name))


# GGUF files have what decays are above zero, we below.
RATES = Stored("blk.{}.ssm_a", between=True, times=lambda config: -1.0)
DELTA: Table = (
    *(_named(f"delta_{part}.weight", f"attn_{part}.weight", f"{part}_proj.weight") for part in "qkv"),
    *taps_apart(ATTENTION),
    _named("delta_alpha.weight", "ssm_f_a.weight", "f_proj.weight"),
    Names("layers.{}.delta_z.weight", "blk.{}.ssm_g_a.weight", GATE),
    _named("delta_beta.weight", "ssm_beta.weight", "b_proj.weight"),
    Names("layers.{}.delta.decay", RATES, Stored(f"{ATTENTION}A_log", log=True)),
    _named("delta_dt.bias", "ssm_dt.bias", "dt_bias"),
    _named("delta_norm.weight", "ssm_norm.weight", "o_norm.weight"),
    _named("delta_o.weight", "attn_output.weight", "o_proj.weight"),
)


@architecture(
    Family(
        "bailingmoe3",
        CLASSES,
        fields(
            *latent.LATENT_FIELDS,
            *FIELDS,
            *EXPERTS,
            *expert_fields(shared_ffn="moe_shared_expert_intermediate_size"),
            without=("window",),
        ),
        changed(
            tuple(_theirs(names) for names in changed(COMMON, *latent.LATENT_NAMES)),
            Names("embedding.weight", "token_embd.weight", "model.word_embeddings.weight"),
            Names("layers.{}.attn_gate.weight", "blk.{}.attn_gate.weight", GATE),
            *expert_names(),
            *shared_names(),
            choice_bias_name(f"{MLP}gate.expert_bias"),
            *DELTA,
        ),
        others={GGUF: latent.UNSPLIT},
        fixed={"rope_style": "adjacent", **V3_CHOICE},
        only=ONLY,
        finish=finished,
        reworded=reworded,
        regrouped=regrouped,
        said=said,
        choose=lambda config: CLASSES[config.own.q_rank > 0].name,
        words=words,
        unsaid=unsaid,
        partial_rotary=True,
        further_layers=True,
        own=LingShape,
        resaved=((".attention.o_proj.", ".attention.dense."),),
        modules=((".dense.", ".o_proj."), (".attention.", ".self_attn."), (".f_proj.", ".forget_gate.f_proj.")),
    )
)
class BailingMoe3(Decoder):
    """Kimi Linear's delta nets, DeepSeek V3's attention and mixtures (Ling team 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own
        limits, block = (own.limits[index], own.shared_limits[index]), feed_forward(name, config, index)
        block = ClampedMixture(name, config, *limits) if any(limits) else block
        if index in own.attention:
            return pre_norm(config, index, GatedLatentAttention(name, config, own, each=False), block)
        heads, dim = own.delta_heads, own.delta_dim
        numbers = DeltaNetShape(own.taps, heads, heads, dim, dim, heads * dim)
        return pre_norm(
            config, index, SplitDeltaNet(name, config, numbers, decays_channels=True, min_log_decay=own.least), block
        )

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | head_tables(self.config.own.value, [self.config.heads])
