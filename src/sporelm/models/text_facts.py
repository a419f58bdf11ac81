"""What encoders alone have, and how their files say it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.family import Field
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.pooling import GGUF_POOLINGS
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.models.config import MOST_WIDTH, ModelConfig

MOST_TYPES, MOST_LABELS = 1 << 10, 1 << 16


@dataclass(frozen=True)
class TextFacts:
    """As `ModelConfig.own`.

    types     rows of the table of token types: of the first text and the second; 0: there is none
    labels    scores that the head gives a text; 0: there is no head
    dense     the head has a layer before its last
    pooled    what the head reads: "cls", the first row, or the "mean" of all; "late": it reads each row, and the mean
              of what it says counts
    embedded  width of embeddings that a product brings to the model's; 0: they have it
    kind      what folders call the family member, where their names differ: "bert", "roberta", "xlm-roberta"
    """

    types: int = 0
    labels: int = 0
    dense: bool = False
    pooled: str = "cls"
    embedded: int = 0
    kind: str = ""


TYPES = Field("own.types", "", "u32", "type_vocab_size", 0, MOST_TYPES, 0)
EMBEDDED = Field("own.embedded", "embedding_length_in", "u32", "embedding_size", 0, MOST_WIDTH, 0)
TOKENIZERS = {"bert": "bert", "t5": "xlm-roberta", "gpt2": "roberta"}  # of GGUF files, and the kind that has each


def labels_of(values: Fields) -> int:
    """The scores that the head of a folder's model gives; the configuration class of transformers takes two."""
    named = values.values.get("id2label")
    if isinstance(named, dict) and 1 <= len(named) <= MOST_LABELS:
        return len(named)
    return values.integer("num_labels", 1, MOST_LABELS, 2)


def headed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """`Family.finish` of families whose classes for classification have the head that scores texts."""
    if kind != HF or not config.architecture.endswith("Classification"):
        return config
    return replace(config, own=replace(config.own, labels=labels_of(values), dense=True))


def label_words(config: ModelConfig) -> dict[str, Any]:
    """What a folder's config.json says of the scores that a head gives; nothing without one."""
    count = config.own.labels
    return {"id2label": {str(label): f"LABEL_{label}" for label in range(count)}} if count else {}


def noticed(config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """What the tensors of a GGUF file say, and its tokenizer."""
    types, labels = (rows_in(shapes, name) for name in ("token_types.weight", "cls.output.weight"))
    facts: TextFacts = replace(config.own, types=types, labels=labels, dense="cls.weight" in shapes)
    tokenizer = metadata.get("tokenizer.ggml.model")
    kind = TOKENIZERS.get(tokenizer, "bert") if isinstance(tokenizer, str) else "bert"
    return replace(config, own=replace(facts, kind=kind))


def rows_in(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Of the matrix of this name; 0 if there is none."""
    shape = shapes.get(name, ())
    return shape[0] if len(shape) == 2 else 0


def said(config: ModelConfig, gguf: str) -> dict[str, tuple[str, Any]]:
    """What GGUF files say of an encoder beside its numbers."""
    facts: TextFacts = config.own
    found: dict[str, tuple[str, Any]] = {f"{gguf}.attention.causal": ("bool", False)}
    found[f"{gguf}.context_length"] = "u32", config.context_length
    if facts.types:
        found["tokenizer.ggml.token_type_count"] = "u32", facts.types
    if facts.labels:
        found[f"{gguf}.pooling_type"] = "u32", GGUF_POOLINGS.index("rank")
        labels = [f"LABEL_{label}" for label in range(facts.labels)]
        found[f"{gguf}.classifier.output_labels"] = "[str]", labels
    return found
