"""Hugging Face folders of GTE: those of transformers, and those of its authors, whose classes are called New."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.gte import GTE_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import BERT_HF_KEYS, PRETRAINING_HEADS
from sporelm.checkpoints.hf_tensors import fused_qkv_tensors
from sporelm.checkpoints.row_numbers import count_ffn_rows, rows_of_part
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.gte import Gte
from sporelm.models.config import MAX_HEADS, MAX_WIDTH, ModelConfig
from sporelm.models.encoder_config import EncoderConfig

PREFIXES: Final = ("new.", "gte.")
DEFAULT_THETA: Final = 160000.0
MAX_THETA: Final = 1e9
MAX_FACTOR: Final = 1e3


def _tensors(prefix: str = "") -> TensorTable:
    embeddings, layer = f"{prefix}embeddings.", f"{prefix}encoder.layer.{{}}."
    names = {
        "embedding_norm": f"{embeddings}LayerNorm",
        "layers.{}.attn_o": f"{layer}attention.o_proj",
        "layers.{}.attn_norm": f"{layer}attn_ln",
        "layers.{}.ffn_down": f"{layer}mlp.down_proj",
        "layers.{}.ffn_norm": f"{layer}mlp_ln",
        "classifier_dense": f"{prefix}pooler.dense",
        "classifier": "classifier",
    }
    return {
        "embedding.weight": f"{embeddings}word_embeddings.weight",
        "types.weight": f"{embeddings}token_type_embeddings.weight",
        **fused_qkv_tensors(f"{layer}attention.qkv_proj"),
        **{
            f"layers.{{}}.ffn_{name}.weight": StoredAs(
                f"{layer}mlp.up_gate_proj.weight", TakeRows(rows_of_part(number, count_ffn_rows, count_ffn_rows))
            )
            for number, name in enumerate(("up", "gate"))
        },
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in names.items() for part in PARTS},
    }


def with_linear_scaling(values: ConfigValues) -> ConfigValues:
    """Return the values with the authors' NTK scaling by a factor f as transformers' linear scaling. Its base is f
    times as large, and its frequencies are divided by f ** (2 / head_dim): kexue.fm/archives/9706, formula 6."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("type") != "ntk":
        return values.with_values({"rope_theta": DEFAULT_THETA, **values.values})
    if set(scaling) != {"type", "factor"}:
        raise UnsupportedModel(
            f"{values.where}: rope_scaling {format_value(scaling)} is not supported; only type and factor are"
        )
    given = values.with_changes(scaling)
    factor = given.number("factor", 1.0, MAX_FACTOR)
    theta = given.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    width = given.integer("hidden_size", 1, MAX_WIDTH)
    head_dim = width // given.integer("num_attention_heads", 1, MAX_HEADS)
    linear = {"rope_type": "linear", "factor": factor ** (2 / max(head_dim, 1))}
    return values.with_changes({"rope_theta": theta * factor, "rope_scaling": linear})


@register
class GteModel(EncoderHfSchema):
    """GTE."""

    model_type = "gte"
    architecture = Gte
    keys = BERT_HF_KEYS
    defaults = {
        "max_position_embeddings": 8192,
        "vocab_size": 250048,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
    }
    constants = GTE_CONSTANTS
    supported = {
        "hidden_act": ("gelu",),
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "pack_qkv": (True,),
        "logn_attention_scale": (False,),
    }
    tensors = _tensors()
    optional_prefixes = PREFIXES
    resaved_names = (("new.", "gte."), ("new.", "new.gte."))
    # Heads of other classes, and the pooler in a model without a head.
    ignored_tensors = (
        *PRETRAINING_HEADS,
        *("classifier.weight", "classifier.bias"),
        *(f"{prefix}pooler.dense.*" for prefix in ("", *PREFIXES)),
    )

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return GteForSequenceClassification() if as_encoder_config(config).head_labels else GteModel()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        values = with_linear_scaling(values)
        config = super().config_from_json(values, dtype)
        positions = values.integer("max_position_embeddings", 1, config.context_length)  # scaling adds none
        return replace(config, context_length=positions)


@register
class NewModel(GteModel):
    """GTE, from its authors."""


@register
class GteForMaskedLM(GteModel):
    """GTE with its pretraining head."""


@register
class NewForMaskedLM(GteModel):
    """GTE from its authors with its pretraining head."""


@register
class NewForTokenClassification(GteModel):
    """GTE from its authors, with a head that weights tokens."""


@register
class GteForSequenceClassification(GteModel):
    """GTE with a classification head."""

    has_head = True
    tensors = _tensors("new.")


@register
class NewForSequenceClassification(GteForSequenceClassification):
    """GTE from its authors with a classification head."""
