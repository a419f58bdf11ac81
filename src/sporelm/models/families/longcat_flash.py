"""LongCat-Flash: two blocks of latent attention a layer, experts beside them, some of which compute nothing."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import MLP, choice_bias_name, expert_fields, expert_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, GGUF, HF, Kind, Names, Table, changed, form_in
from sporelm.models.blocks import GatedMLP, LatentAttention, Layer, RMSNorm
from sporelm.models.blocks.shortcut_layer import ShortcutLayer, ZeroExpertMixture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.ops.expert_routing import MAX_EXPERTS

HALVES = ("first", "second")
# The words of transformers -> those of its makers.
WORDS = {"intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"}
WORDS |= {"num_experts_per_tok": "moe_topk", "num_local_experts": "n_routed_experts"}
DEFAULTS: dict[str, Any] = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
DEFAULTS |= {"v_head_dim": 128, "n_routed_experts": 512, "moe_topk": 12, "expert_ffn_hidden_size": 2048}
DEFAULTS |= {"zero_expert_num": 256, "routed_scaling_factor": 6.0, "ffn_hidden_size": 12288, "rms_norm_eps": 1e-5}
DEFAULTS |= {"rope_theta": 1e7, "max_position_embeddings": 131072}
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "zero_expert_type": ("identity",)}
ONLY |= {"attention_method": ("MLA",), **dict.fromkeys(("mla_scale_q_lora", "mla_scale_kv_lora"), (True,))}
ONLY |= dict.fromkeys(("attention_bias", "router_bias", "norm_topk_prob"), (False,))


@dataclass(frozen=True)
class LongcatShape(latent.LatentShape):
    """Numbers of latent attention, and of experts that compute nothing."""

    idle: int = 0


def _in_half(names: Names, number: int) -> Names:
    """The names of a weight in one of a layer's two halves; the second's has a 2 behind its name in GGUF files."""
    gguf, hf = form_in(names, GGUF), form_in(names, HF)
    block, _, part = hf.name.removeprefix("model.layers.{}.").partition(".")
    hf = replace(hf, name=f"model.layers.{{}}.{'mlps' if block == 'mlp' else block}.{number}.{part}")
    gguf = replace(gguf, name=gguf.name.replace(".weight", "_2.weight") if number else gguf.name)
    if names.ours.endswith("kv_a_norm.weight"):  # what is normed is multiplied too
        hf, gguf = (replace(form, times=lambda config: (config.own.rank / config.width) ** 0.5) for form in (hf, gguf))
    return Names(names.ours.replace("layers.{}.", f"layers.{{}}.{HALVES[number]}."), gguf, hf)


_HALF = tuple(names for names in COMMON if names.ours.startswith("layers.") and names.ours.endswith(".weight"))
HALVED: Table = tuple(_in_half(names, number) for number in (0, 1) for names in changed(_HALF, *latent.LATENT_NAMES))


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    found = latent.reworded(values) | {ours: values[name] for name, ours in WORDS.items() if name in values}
    halves = values.get("num_hidden_layers")
    if values.get("num_layers") is None and type(halves) is int:
        found["num_layers"] = halves // 2
    return found


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Queries are multiplied too, by what their latent is narrower than the rows: so are the scores."""
    config = latent.finished(config, values, kind)
    factor = (config.width / (config.own.q_rank or config.width)) ** 0.5
    return replace(config, scales=replace(config.scales, attention=config.attention_scale * factor))


@architecture(
    Family(
        "longcat-flash",
        (HfClass("LongcatFlashForCausalLM", "longcat_flash", DEFAULTS),),
        fields(
            *latent.LATENT_FIELDS,
            Field("layers", "block_count", "u32", "num_layers"),
            Field("ffn", "feed_forward_length", "u32", "ffn_hidden_size"),
            Field("own.idle", "expert_idle_count", "u32", "zero_expert_num", 0, MAX_EXPERTS, 0),
            *expert_fields(
                count="n_routed_experts", used="moe_topk", ffn="expert_ffn_hidden_size", scale="routed_scaling_factor"
            ),
            without=("window",),
        ),
        changed(
            tuple(names for names in COMMON if not names.ours.startswith("layers.")),
            *HALVED,
            *expert_names(),
            Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}router.classifier.weight"),
            choice_bias_name(f"{MLP}router.e_score_correction_bias"),
        ),
        fixed={"rope_style": "adjacent", "experts.choice_bias": True},
        only=ONLY,
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=_reworded,
        said=lambda config: latent.said(config, "longcat-flash", absorbed=True),
        words=latent.words,
        unsaid=latent.unsaid,
        # Layers that predict further ahead, and matrices that transformers writes for experts that compute nothing.
        ignored=("model.mtp.*", f"{MLP}experts.*"),
        partial_rotary=True,
        own=LongcatShape,
    )
)
class LongcatFlash(Decoder):
    """DeepSeek V3's attention twice a layer (Meituan 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        def half(name: str) -> Layer:
            before, between = (RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn"))
            return Layer(before, LatentAttention(name, config), between, GatedMLP(name, config))

        first, second = (half(f"layers.{index}.{each}") for each in HALVES)
        return ShortcutLayer(first, second, ZeroExpertMixture(f"layers.{index}", config, config.own.idle))
