"""Ollama's options, formats and model names, translated."""

from collections.abc import Mapping
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.model_pool.model_pool import ModelPool
from sporelm.text.grammar.grammar import Grammar

SAME_NAMES = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "mirostat",
    "mirostat_tau", "mirostat_eta", "seed",
)  # fmt: skip
# Accepted without effect: how a model is loaded is decided when the server starts. docs/server.md lists them.
WITHOUT_EFFECT = (
    "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram",
    "vocab_only", "f16_kv", "logits_all", "embedding_only", "penalize_newline", "repeat_last_n", "tfs_z",
)  # fmt: skip


def sampling_from_options(options: Mapping[str, Any], max_context: int) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that options set. Raises RequestError for an unknown or invalid option."""
    sampling: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in WITHOUT_EFFECT or name == "num_predict":
            continue
        if name == "seed" and isinstance(value, int) and value < 0:
            continue  # a random seed
        if name in SAME_NAMES:
            sampling[name] = value
        elif name == "repeat_penalty":
            sampling["repetition_penalty"] = value
        elif name == "stop":
            sampling["stop"] = value
        elif name == "num_ctx":
            if type(value) is not int or not 1 <= value <= max_context:
                raise RequestError(
                    f"num_ctx is {safe_repr(value)}: it must be from 1 to {max_context}, the context size of this "
                    "model on this server (max_context)"
                )
        else:
            known = ", ".join([*SAME_NAMES, "repeat_penalty", "stop", "num_ctx", "num_predict"])
            raise RequestError(f"the option {safe_repr(name)} is unknown: known are {known}")
    return sampling


def max_tokens_from_options(options: Mapping[str, Any]) -> int | None:
    """Return the most tokens of an answer; None for -1 and -2, which ask for as many as fit. Raises RequestError."""
    num_predict = options.get("num_predict")
    if num_predict is None or num_predict in (-1, -2):
        return None
    if not isinstance(num_predict, int) or isinstance(num_predict, bool) or num_predict < 1:
        raise RequestError(f"num_predict is {safe_repr(num_predict)}: it must be at least 1, or -1 for no limit")
    return num_predict


def grammar_from_ollama(form: str | Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar of `format`, which is "json" or a schema. Raises RequestError."""
    if form is None or form == "":
        return None
    if form == "json":
        return Grammar(json_schema={"type": "object"})
    if isinstance(form, str):
        raise RequestError(f"format is {safe_repr(form)}: it must be 'json' or a JSON schema")
    return Grammar(json_schema=dict(form))


def model_name_from_ollama(models: ModelPool, name: str) -> str:
    """Return the server's name of a model, without the tag `:latest` that Ollama's clients add."""
    untagged = name.removesuffix(":latest")
    return untagged if name not in models.specs and untagged in models.specs else name
