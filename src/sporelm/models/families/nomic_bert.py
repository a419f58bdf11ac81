"""Nomic BERT: BERT with rotary positions, a gated feed-forward block and no biases but those of norms; and Nomic Embed
v2, which has ungated blocks with biases, and experts in every other layer."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import expert_fields
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer, GatedMLP, Mixture, RowBlock
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import HEADS
from sporelm.models.families.nomic_bert_names import ADDED, BIASES, KEPT, NAMES, PLAIN, WORDS, reworded
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, noticed, said

STEP = 2  # of so many layers the last has experts


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    mixed = config.experts is not None and config.experts.step > 0
    if config.experts is not None and mixed and config.experts.step != STEP:
        what = f"moe_every_n_layers {config.experts.step}"
        raise UnsupportedModel(f"{values.where}: {what} is not supported; {STEP} is")
    experts = config.experts if mixed else None
    return replace(config, experts=experts, attention_bias=mixed, attention_out_bias=mixed, mlp_bias=mixed)


def _words(config: ModelConfig) -> dict[str, Any]:
    """Of a mixture, which transformers lacks, in its authors' words."""
    if config.experts is None:
        return {"hidden_act": "silu"}
    values = (config.width, config.ffn, config.layers, config.heads, config.eps, config.rope_theta)
    positions = {"n_positions": config.context_length, "max_trained_positions": config.context_length}
    found = dict(zip(WORDS, values, strict=True)) | positions | dict.fromkeys(BIASES, True)
    return found | {"activation_function": "gelu", "type_vocab_size": config.own.types, KEPT: config.experts.added}


def _unsaid(config: ModelConfig) -> str:
    return "" if config.head_dim * config.heads == config.width else "its heads do not add up to the model's width"


@architecture(
    Family(
        "nomic-bert",
        tuple(
            HfClass(
                f"NomicBert{name}",
                "nomic_bert",
                {"max_position_embeddings": 2048, "vocab_size": 30528, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
                | {"rope_theta": 1000.0},
            )
            for name in ("Model", "ForMaskedLM", "ForPreTraining")
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            *expert_fields(optional=True, count="num_experts", used="moe_top_k"),
            Field("experts.added", "", "bool", KEPT, default=True, weight=ADDED),
            Field("experts.step", "moe_every_n_layers", "u32", "moe_every_n_layers", 0, MOST_LAYERS, 0),
            Field("head_dim", "", "u32", "head_dim"),
            without=("kv_heads", "window"),
        ),
        NAMES,
        fixed={"experts.plain": "gelu"},
        only={
            **dict.fromkeys(("prenorm", "causal", "moe_normalize_expert_weights", "expert_choice_router"), (False,)),
            **dict.fromkeys(("rotary_emb_interleaved", "use_rms_norm", "parallel_block"), (False,)),
            "rotary_emb_fraction": (1.0,),
            "num_shared_experts": (0,),
            "ffn_div": (1,),
        },
        finish=_finished,
        noticed=noticed,
        said=lambda config: said(config, f"nomic-bert{'-moe' if config.experts else ''}"),
        words=_words,
        unsaid=_unsaid,
        reworded=reworded,
        fronts=("nomic_bert.", "bert."),
        ignored=HEADS,
        mixture="nomic-bert-moe",
        own=TextFacts,
        reads=True,
    )
)
class NomicBert(Encoder):
    """Tokens and their types added; a norm after each sum; rotary attention, SwiGLU (Nussbaum et al. 2024); or GELU,
    and a mixture in every other layer (Nussbaum, Duderstadt 2025)."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderAttention(name, config), second, self.block(config, index), post=True)

    def block(self, config: ModelConfig, index: int) -> RowBlock:
        """The feed-forward block of this layer."""
        name = f"layers.{index}"
        if config.experts is None:
            return GatedMLP(name, config)
        return Mixture(name, config) if config.experts.at(index) else MLP(name, config, "gelu", part=PLAIN)
