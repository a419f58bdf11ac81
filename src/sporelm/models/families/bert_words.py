"""The words of BERT's configurations, and of those of its kin."""

from typing import Any

from sporelm.models.families.bert_names import BEFORE, TITLES
from sporelm.models.text_facts import label_words
from sporelm.weights.config import ModelConfig

UNSHIFTED = ("bert", "distilbert", "ernie")  # positions begin with the first row of their table
# What DistilBERT's configurations call it -> what all others do.
WORDS = {"dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers"}
WORDS |= {"n_heads": "num_attention_heads", "activation": "hidden_act"}


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """A config.json in one dialect."""
    return values | {new: values[old] for old, new in WORDS.items() if old in values and new not in values}


def class_of(config: ModelConfig) -> str:
    return f"{TITLES[config.own.kind]}{'ForSequenceClassification' if config.own.labels else 'Model'}"


def words(config: ModelConfig) -> dict[str, Any]:
    before = 0 if config.own.kind in UNSHIFTED else BEFORE
    found = {"max_position_embeddings": config.context_length + before} | label_words(config)
    if config.own.kind != "distilbert":
        return found
    numbers = {"dim": config.width, "hidden_dim": config.ffn, "n_layers": config.layers, "n_heads": config.heads}
    return found | numbers | {"activation": "gelu"}


def unsaid(config: ModelConfig) -> str:
    lost = config.own.kind == "distilbert" and config.own.labels
    return "its head has ReLU" if lost else "its tasks have rows of their own" if config.own.tasks else ""
