"""The text model in folders of models that see, or hear, as well: a part of config.json, names with more in front."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.tensor_names import Names, Stored, Table

IMAGES = ("mrope_section", "mrope_interleaved")  # of rotary parameters: how they place rows of images
OUTER = ("tie_word_embeddings", "quantization_config")  # beside the text model's own numbers
# Parts that do not read text, left unread: towers that see or hear, and what brings their rows into the text.
_PARTS = (
    *("visual", "vision_tower", "vision_model", "embed_vision", "audio_tower", "embed_audio", "multi_modal_projector"),
    *("aligner", "connector", "projector", "mm_projector", "vision_projection", "vision_projector"),
    "visual_embeddings_table",
    *("high_res_vision_model", "acoustic_tokenizer_encoder", "semantic_tokenizer_encoder"),
    *("image_tower", "video_tower", "vision_encoder", "vision_embedder"),
    "vit_large_projector",
)
OTHERS = (
    *(f"{start}{part}.*" for start in ("", "model.") for part in _PARTS),
    *(f"{start}image_newline" for start in ("", "model.", "language_model.model.")),
)


def text_part(values: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, its class that of the whole; all of it where there is no such part."""
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        return values
    return {**values, **text, **{key: values[key] for key in ("architectures", *OUTER) if key in values}}


def without_images(values: dict[str, Any]) -> dict[str, Any]:
    """A config.json whose rotary parameters say nothing of images; what they said stands beside them."""
    found = values
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := values.get(key), Mapping):
            said = {name: rope[name] for name in IMAGES if name in rope}
            inner = {name: value for name, value in rope.items() if name not in IMAGES}
            inner |= {name: "default" for name in ("rope_type", "type") if inner.get(name) == "mrope"}
            found = {**found, **said, key: inner}
    return found


def inner_names(table: Table, inner: str = "model.language_model.") -> Table:
    """The names in such folders, where the text model's have `inner` in place of "model." in front."""
    return tuple(_within(names, "model.", inner) for names in table)


def whole_names(table: Table, front: str) -> Table:
    """The names in folders that have them as they are, with `front` before each."""
    before = inner_names(table, f"{front}model.")
    return tuple(_within(names, "lm_head.", f"{front}lm_head.") for names in before)


def text_names(table: Table) -> Table:
    """The names in such folders: those of the text model alone, those of today, and those that transformers 4 wrote."""
    return (*table, *inner_names(table), *whole_names(table, "language_model."))


def _within(names: Names, start: str, other: str) -> Names:
    hf = names.hf
    name = hf.name if isinstance(hf, Stored) else hf
    name = other + name.removeprefix(start) if name.startswith(start) else name
    return Names(names.ours, names.gguf, Stored(**{**vars(hf), "name": name}) if isinstance(hf, Stored) else name)
