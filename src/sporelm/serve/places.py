"""Errors without the places of this server's files: clients are told which model it is and why, the log where."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.errors import BackendError, MemoryShortage, ModelNotFound, SporeError
from sporelm.serve.failures import RETRY_SECONDS, Refusal, without_paths

if TYPE_CHECKING:
    from sporelm.serve.config import ModelSpec
    from sporelm.serve.served_model import ServedModel

log = logging.getLogger("sporelm.serve")


def places_of(model: "ServedModel", spec: "ModelSpec") -> dict[str, str]:
    """Where a model lies, as errors may name it -> what it is called."""
    llm = model.llm.llm
    return named(spec, str(llm.opened.path), llm.tokenizer.label) if llm.is_open else {}


def named(spec: "ModelSpec", *places: str) -> dict[str, str]:
    """These places and the one that the model was given by, each as the model's name."""
    given = [] if spec.path is None else [spec.path, str(Path(spec.path).absolute())]
    return {place: spec.name for place in (*given, *places) if "/" in place or "\\" in place}


def without(text: str, places: Mapping[str, str]) -> str:
    """A text that calls each of the places by its name."""
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    return text


def unusable(spec: "ModelSpec", error: SporeError) -> Refusal:
    """What clients are told of a model that cannot be loaded; the log is told all."""
    log.error("the model %s cannot be loaded: %s", spec.name, error)
    reason = without_paths(without(str(error), named(spec)))
    if isinstance(error, ModelNotFound):  # which names all that there is
        reason = "its files are not there"
    message = f"the model {spec.name} cannot be loaded: {reason}"
    again = {"retry-after": str(RETRY_SECONDS)}
    if isinstance(error, MemoryShortage):
        return Refusal(503, message, "server_error", "memory_shortage", again)
    if isinstance(error, BackendError):
        return Refusal(503, message, "server_error", "engine_failed", again)
    return Refusal(500, message, "server_error", "model_unusable")
