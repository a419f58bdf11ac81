"""The text model in folders of models that see, or hear, as well: a part of config.json, names with more in front."""

from collections.abc import Mapping
from typing import Any

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
