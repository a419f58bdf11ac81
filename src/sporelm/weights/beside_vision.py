"""The text model in folders of models that see, or hear, as well: a part of config.json, names with more in front."""

from collections.abc import Mapping
from typing import Any

from sporelm.weights.names import Names, Stored, Table

OUTER = ("tie_word_embeddings", "quantization_config")  # beside the text model's own numbers
# Parts that do not read text, left unread.
OTHERS = (
    *("visual.*", "model.visual.*", "model.vision_tower.*", "model.multi_modal_projector.*", "model.embed_vision.*"),
    *("model.audio_tower.*", "model.embed_audio.*", "vision_tower.*", "multi_modal_projector.*"),
)


def text_part(values: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, its class that of the whole; all of it where there is no such part."""
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        return values
    return {**values, **text, **{key: values[key] for key in ("architectures", *OUTER) if key in values}}


def inner_names(table: Table, inner: str = "model.language_model.") -> Table:
    """The names in such folders, where the text model's have `inner` in place of "model." in front."""
    return tuple(_within(names, "model.", inner) for names in table)


def text_names(table: Table) -> Table:
    """The names in such folders: those of the text model alone, those of today, and those that transformers 4 wrote."""
    before = inner_names(table, "language_model.model.")
    return (*table, *inner_names(table), *(_within(names, "lm_head.", "language_model.lm_head.") for names in before))


def _within(names: Names, start: str, other: str) -> Names:
    hf = names.hf
    name = hf.name if isinstance(hf, Stored) else hf
    name = other + name.removeprefix(start) if name.startswith(start) else name
    return Names(names.ours, names.gguf, Stored(**{**vars(hf), "name": name}) if isinstance(hf, Stored) else name)
