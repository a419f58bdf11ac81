"""The words of BERT's configurations, and of those of its kin."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.fields import Fields
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.bert_names import BEFORE, TITLES, WORDS
from sporelm.models.text_facts import label_words

UNSHIFTED = ("bert", "distilbert", "ernie")  # positions begin with the first row of their table


def after_padding(config: ModelConfig, values: Fields, padding: int | None = BEFORE - 1) -> ModelConfig:
    """The configuration of a folder whose table of positions has BEFORE rows more than texts have tokens.

    padding   what silence about its id means; None: it must be told

    Raises UnsupportedModel for an id that positions are not counted from, ModelFileError for a table of no more rows.
    """
    if values.integer("pad_token_id", 0, config.vocab, padding) != BEFORE - 1:
        raise UnsupportedModel(f"{values.where}: pad_token_id must be {BEFORE - 1}: positions are counted from it")
    if config.context_length <= BEFORE:
        what = f"max_position_embeddings is {config.context_length}"
        raise ModelFileError(f"{values.where}: {what}; the first {BEFORE} are of no token, there must be more")
    return replace(config, context_length=config.context_length - BEFORE)


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
