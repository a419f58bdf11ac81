"""The supported vision towers: one entry for each pair of schemas, and the references that verify it."""

from typing import NamedTuple


class SupportedTower(NamedTuple):
    """One family of models that see.

    module            of its tower in `models.towers`, its schemas in `checkpoints.towers`, and its processor in
                      `vision.processors`
    title             common names of the models
    projectors        values of `clip.projector_type` in its mmproj files
    classes           its classes in transformers, or in the code of its authors
    verified_against  references for its logits: "transformers", "mtmd" (llama.cpp), "lmdeploy", or "numpy" (a plain
                      forward pass in the tests)
    metadata_key      of its mmproj files, if a later entry has the same projector, for files without the key
    vision_types      values of `model_type` in its `vision_config`; (): any
    """

    module: str
    title: str
    projectors: tuple[str, ...]
    classes: tuple[str, ...]
    verified_against: tuple[str, ...]
    metadata_key: str = ""
    vision_types: tuple[str, ...] = ()


PINPOINTS_KEY = "clip.vision.image_grid_pinpoints"
CLIP_OR_SIGLIP = ("clip_vision_model", "siglip_vision_model")
TOWERS: tuple[SupportedTower, ...] = (
    SupportedTower(
        "llava_next",
        "LLaVA-NeXT, Granite Vision",
        ("mlp",),
        ("LlavaNextForConditionalGeneration",),
        ("transformers",),
        PINPOINTS_KEY,
        CLIP_OR_SIGLIP,
    ),
    SupportedTower(
        "llava",
        "LLaVA 1.5",
        ("mlp",),
        ("LlavaForConditionalGeneration",),
        ("transformers", "mtmd"),
        vision_types=CLIP_OR_SIGLIP,
    ),
    SupportedTower("gemma3", "Gemma 3", ("gemma3",), ("Gemma3ForConditionalGeneration",), ("transformers", "mtmd")),
    SupportedTower(
        "qwen2vl", "Qwen2-VL", ("qwen2vl_merger",), ("Qwen2VLForConditionalGeneration",), ("transformers", "mtmd")
    ),
    SupportedTower(
        "qwen25vl",
        "Qwen2.5-VL",
        ("qwen2.5vl_merger",),
        ("Qwen2_5_VLForConditionalGeneration",),
        ("transformers", "mtmd"),
    ),
    SupportedTower(
        "qwen3vl",
        "Qwen3-VL",
        ("qwen3vl_merger",),
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        ("transformers", "mtmd"),
    ),
    SupportedTower(
        "idefics3",
        "Idefics3, SmolVLM, SmolVLM2",
        ("idefics3",),
        ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        ("transformers", "mtmd"),
    ),
    SupportedTower(
        "internvl",
        "InternVL 1.5, 2, 2.5, 3, 3.5",
        ("internvl",),
        ("InternVLForConditionalGeneration", "InternVLChatModel"),
        ("transformers", "lmdeploy", "mtmd"),
    ),
    SupportedTower(
        "minicpmv",
        "MiniCPM-V 2.5, 2.6, 4, 4.5, MiniCPM-o 2.6, 4.5",
        ("resampler",),
        ("MiniCPMV", "MiniCPMO"),
        ("numpy", "mtmd"),
    ),
    SupportedTower("cogvlm", "CogVLM, CogVLM2", ("cogvlm",), ("CogVLMForCausalLM",), ("lmdeploy", "numpy")),
)
# Image encoders: folders without a text model that reads pictures. Their vectors stand for whole pictures.
IMAGE_ENCODERS: tuple[SupportedTower, ...] = (
    SupportedTower(
        "clip", "CLIP", (), ("CLIPModel", "CLIPVisionModelWithProjection", "CLIPVisionModel"), ("transformers",)
    ),
    SupportedTower("siglip", "SigLIP", (), ("SiglipModel", "SiglipVisionModel"), ("transformers",)),
)
