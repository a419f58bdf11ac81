"""The supported vision towers: one entry for each pair of schemas, and the references that verify it."""

from typing import NamedTuple


class SupportedTower(NamedTuple):
    """One family of vision models.

    module            name of its modules: the tower in `models.towers`, the schemas in `checkpoints.towers.gguf` and
                      `.hf`, and the processor in `vision.processors`
    title             common names of the models
    projectors        values of `clip.projector_type` in its mmproj files
    classes           its classes in transformers, or in the authors' code (trust_remote_code)
    verified_against  references for its logits: "transformers", "mtmd" (llama.cpp), "lmdeploy", or "numpy" (a plain
                      forward pass in the tests)
    metadata_key      key that its mmproj files must have, where a later entry has the same projector; "": any file
    vision_types      supported values of `model_type` in its `vision_config`; (): any
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
# Image encoders: they have one vector for each picture, and no language model.
IMAGE_ENCODERS: tuple[SupportedTower, ...] = (
    SupportedTower(
        "clip", "CLIP", (), ("CLIPModel", "CLIPVisionModelWithProjection", "CLIPVisionModel"), ("transformers",)
    ),
    SupportedTower("siglip", "SigLIP", (), ("SiglipModel", "SiglipVisionModel"), ("transformers",)),
)
