"""The text model in folders of multimodal models: its part of config.json, and the tensors of the other parts."""

from collections.abc import Mapping
from typing import Any

IMAGE_ROPE_KEYS = ("mrope_section", "mrope_interleaved")  # rotary parameters that place image tokens
OUTER_KEYS = ("tie_word_embeddings", "quantization_config")  # outside `text_config`
# Vision and audio modules, and the projectors of their outputs: their tensors are not read.
_MODULES = (
    *("visual", "vision_tower", "vision_model", "embed_vision", "audio_tower", "embed_audio", "multi_modal_projector"),
    *("aligner", "connector", "projector", "mm_projector", "vision_projection", "vision_projector", "mlp1"),
    "visual_embeddings_table",
    *("high_res_vision_model", "acoustic_tokenizer_encoder", "semantic_tokenizer_encoder"),
    *("image_tower", "video_tower", "vision_encoder", "vision_embedder"),
    "vit_large_projector",
    *("vpm", "resampler", "apm", "audio_projection_layer", "tts"),  # MiniCPM-V and MiniCPM-o
)
MULTIMODAL_TENSORS = (
    *(f"{start}{module}.*" for start in ("", "model.") for module in _MODULES),
    *(f"{start}image_newline" for start in ("", "model.", "language_model.model.")),
)


def select_text_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the text model's part of a config.json under the class of the whole model; all of it without such a
    part."""
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        return values
    return {**values, **text, **{key: values[key] for key in ("architectures", *OUTER_KEYS) if key in values}}


def lift_image_rope_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json whose rotary parameters for images are moved from the rotary object to the top level."""
    found = values
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := values.get(key), Mapping):
            image_keys = {name: rope[name] for name in IMAGE_ROPE_KEYS if name in rope}
            inner = {name: value for name, value in rope.items() if name not in IMAGE_ROPE_KEYS}
            inner |= {name: "default" for name in ("rope_type", "type") if inner.get(name) == "mrope"}
            found = {**found, **image_keys, key: inner}
    return found
