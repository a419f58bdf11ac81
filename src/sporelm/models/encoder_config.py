"""The configuration of an encoder."""

from dataclasses import dataclass, fields
from typing import Any

from sporelm.models.config import ModelConfig
from sporelm.models.text_facts import TextFacts


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """The numbers of an encoder beside the shape of all models.

    token_types       rows of the table of token types, for the first text and the second; 0: there is no table
    head_labels       scores that the classification head gives a text; 0: there is no head
    has_head_dense    the head has a layer before its last
    head_pooling      what the head reads: "cls", the first row, or the "mean" of all rows; "late": it reads each
                      row, and its outputs are averaged
    embedding_width   width of embeddings that a product widens to the model's; 0: they have the model's
    model_type        of folders, where classes of one architecture differ: "bert", "roberta", "xlm-roberta"
    """

    token_types: int = 0
    head_labels: int = 0
    has_head_dense: bool = False
    head_pooling: str = "cls"
    embedding_width: int = 0
    model_type: str = ""


def with_record_fields(config: ModelConfig) -> Any:
    """Return the configuration of an encoder that is not converted with the numbers of its record as fields."""
    if isinstance(config, EncoderConfig):
        return config
    facts: TextFacts = config.own
    return EncoderConfig(
        **{each.name: getattr(config, each.name) for each in fields(ModelConfig)},
        token_types=facts.types,
        head_labels=facts.labels,
        has_head_dense=facts.dense,
        head_pooling=facts.pooled,
        embedding_width=facts.embedded,
        model_type=facts.kind,
    )
