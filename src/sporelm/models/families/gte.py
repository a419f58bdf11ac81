"""GTE v1.5 and multilingual (its authors' classes are called New): BERT with rotary positions and GeGLU."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import EncoderAttention, EncoderLayer, GatedMLP
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.families.gte_names import CLASSES, FRONTS, UNREAD
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, label_words, labels_of, noticed, said


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The authors' scaling by a factor f: a base f times as large, and frequencies divided by f ** (2 / head_dim)
    (kexue.fm/archives/9706, formula 6), which is linear scaling of the larger base."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("type") != "ntk":
        return {"rope_theta": 160000.0, **values}
    if set(scaling) != {"type", "factor"}:
        raise UnsupportedModel(
            f"config.json: rope_scaling {shown(scaling)} is not supported; type and factor alone are"
        )
    told = Fields({**values, **scaling}, "config.json")
    factor, theta = told.number("factor", 1.0, 1e3), told.number("rope_theta", 1.0, 1e9, 10000.0)
    dim = told.integer("hidden_size", 1, 1 << 20) // told.integer("num_attention_heads", 1, 1 << 12)
    linear = {"rope_type": "linear", "factor": factor ** (2 / max(dim, 1))}
    return values | {"rope_theta": theta * factor, "rope_scaling": linear}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    facts: TextFacts = config.own
    if config.architecture.endswith("SequenceClassification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    positions = values.integer("max_position_embeddings", 1, config.context_length)  # scaling gains none
    return replace(config, own=facts, context_length=positions)


@architecture(
    Family(
        "gte",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "window"),
        ),
        CLASSES[0].names,
        fixed={"attention_bias": True, "attention_out_bias": True, "mlp_bias": False},
        only={
            "hidden_act": ("gelu",),
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "pack_qkv": (True,),
            "logn_attention_scale": (False,),
        },
        finish=_finished,
        noticed=noticed,
        said=lambda config: said(config, "gte"),
        choose=lambda config: CLASSES[5 if config.own.labels else 0].name,
        words=label_words,
        reworded=_reworded,
        fronts=FRONTS,
        ignored=UNREAD,
        own=TextFacts,
        resaved=(("new.", "gte."), ("new.", "new.gte.")),
        reads=True,
    )
)
class Gte(Encoder):
    """Tokens and their types added; a norm after each sum; rotary attention, GeGLU (Zhang et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        mlp = GatedMLP(name, config, "gelu", down_bias=True)
        return EncoderLayer(first, EncoderAttention(name, config), second, mlp, post=True)
