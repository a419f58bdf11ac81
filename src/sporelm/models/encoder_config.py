"""The configuration of an encoder."""

from dataclasses import dataclass

from sporelm.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """The fields of encoders, beyond those of all models.

    token_types       rows of the table of token types, for the first text and the second; 0: there is no table
    head_labels       scores that the classification head gives a text; 0: there is no head
    has_head_dense    the head has a layer before its last
    head_pooling      input of the head: "cls", the first row, or the "mean" of all rows; "late": it reads each row,
                      and its outputs are averaged
    embedding_width   width of embeddings, which are projected to the model's width; 0: they have the model's width
    model_type        of folders, where classes of one architecture differ: "bert", "roberta", "xlm-roberta"
    """

    token_types: int = 0
    head_labels: int = 0
    has_head_dense: bool = False
    head_pooling: str = "cls"
    embedding_width: int = 0
    model_type: str = ""
