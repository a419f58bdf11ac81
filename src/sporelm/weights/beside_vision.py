"""The text model in folders of models that see, or hear, as well: a part of config.json, names with more in front."""

from collections.abc import Mapping
from typing import Any

from sporelm.weights.names import Names, Stored, Table

OUTER = ("tie_word_embeddings", "quantization_config")  # beside the text model's own numbers
# Parts that do not read text, left unread.
OTHERS = (
    *("model.visual.*", "model.vision_tower.*", "model.multi_modal_projector.*", "model.embed_vision.*"),
    *("model.audio_tower.*", "model.embed_audio.*", "vision_tower.*", "multi_modal_projector.*"),
)


def text_part(values: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, its class that of the whole; all of it where there is no such part."""
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        return values
    return {**values, **text, **{key: values[key] for key in ("architectures", *OUTER) if key in values}}


def text_names(table: Table) -> Table:
    """The names in such folders: those of today, and those that transformers 4 wrote."""
    today = tuple(_within(names, "model.", "model.language_model.") for names in table)
    before = (_within(names, "model.", "language_model.model.") for names in table)
    return (*today, *(_within(names, "lm_head.", "language_model.lm_head.") for names in before))


def _within(names: Names, start: str, other: str) -> Names:
    hf = names.hf
    name = hf.name if isinstance(hf, Stored) else hf
    name = other + name.removeprefix(start) if name.startswith(start) else name
    return Names(names.ours, names.gguf, Stored(**{**vars(hf), "name": name}) if isinstance(hf, Stored) else name)
