"""Ollama's options, formats and names of models, as ours."""

from collections.abc import Mapping
from typing import Any

from sporelm.errors import RequestError, shown
from sporelm.serve.models import Models
from sporelm.text.grammar import Grammar

SAME = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "mirostat",
    "mirostat_tau", "mirostat_eta", "seed",
)  # fmt: skip
# How a model is loaded is decided when the server starts, and the others have nothing here that they could change:
# these can be sent, and docs/server.md says so.
WITHOUT_EFFECT = (
    "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram",
    "vocab_only", "f16_kv", "logits_all", "embedding_only", "penalize_newline", "repeat_last_n", "tfs_z",
)  # fmt: skip


def translated(options: Mapping[str, Any], max_context: int) -> dict[str, Any]:
    """Fields of `SamplingParams`. Raises RequestError for an option that is unknown or cannot be had."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in WITHOUT_EFFECT or name == "num_predict":
            continue
        if name == "seed" and isinstance(value, int) and value < 0:
            continue  # any
        if name in SAME:
            found[name] = value
        elif name == "repeat_penalty":
            found["repetition_penalty"] = value
        elif name == "stop":
            found["stop"] = value
        elif name == "num_ctx":
            if type(value) is not int or not 1 <= value <= max_context:
                raise RequestError(
                    f"num_ctx is {shown(value)}: it must be from 1 to {max_context}, the positions that this server "
                    "holds for this model (its max_context)"
                )
        else:
            known = ", ".join([*SAME, "repeat_penalty", "stop", "num_ctx", "num_predict"])
            raise RequestError(f"the option {shown(name)} is unknown: there are {known}")
    return found


def tokens_of(options: Mapping[str, Any]) -> int | None:
    """Tokens of an answer at most; None where -1 or -2 ask for as many as there is room for. Raises RequestError."""
    wanted = options.get("num_predict")
    if wanted is None or wanted in (-1, -2):
        return None
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise RequestError(f"num_predict is {shown(wanted)}: it must be at least 1, or -1 for no limit")
    return wanted


def grammar_of(form: str | Mapping[str, Any] | None) -> Grammar | None:
    """What `format` asks for: "json", or a schema. Raises RequestError."""
    if form is None or form == "":
        return None
    if form == "json":
        return Grammar(json_schema={"type": "object"})
    if isinstance(form, str):
        raise RequestError(f"format is {shown(form)}: it must be 'json' or a JSON schema")
    return Grammar(json_schema=dict(form))


def named(models: Models, name: str) -> str:
    """The name of a model, whose tag may be the one that Ollama adds."""
    plain = name.removesuffix(":latest")
    return plain if name not in models.specs and plain in models.specs else name
