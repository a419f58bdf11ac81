"""Hugging Face folders of Idefics3, SmolVLM and SmolVLM2."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.clip_folders import check_heads, layer_tensors, read_activation
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import (
    MAX_IMAGE_SIZE,
    TowerHfSchema,
    inner_values,
    patch_kernel,
    read_vit_shape,
)
from sporelm.checkpoints.transforms import FlattenKernel
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.idefics3 import Idefics3Tower

# Defaults of transformers' Idefics3VisionConfig and SmolVLMVisionConfig.
VISION_DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "layer_norm_eps": 1e-6,
    "image_size": 224,
    "patch_size": 32,
}
GELU_TANH: Final = "gelu_pytorch_tanh"
TEXT_WIDTH: Final = 4096  # of transformers' LlamaConfig
MAX_MERGE: Final = 64


@register_tower
class Idefics3Hf(TowerHfSchema):
    """`Idefics3ForConditionalGeneration` and `SmolVLMForConditionalGeneration`."""

    architecture = Idefics3Tower
    prefixes = ("model.vision_model.", "model.connector.", "vision_model.", "connector.")
    name_prefix = "model."
    tensors = {
        "patches.weight": StoredAs("model.vision_model.embeddings.patch_embedding.weight", FlattenKernel(patch_kernel)),
        "patches.bias": "model.vision_model.embeddings.patch_embedding.bias",
        "positions.weight": "model.vision_model.embeddings.position_embedding.weight",
        **layer_tensors("model.vision_model."),
        **{f"last_norm.{part}": f"model.vision_model.post_layernorm.{part}" for part in PARTS},
        "projector.weight": "model.connector.modality_projection.proj.weight",
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision, text = inner_values(values, "vision_config"), inner_values(values, "text_config")
        vision = with_one_side(vision.with_values({**VISION_DEFAULTS, **vision.values}))
        patch = vision.integer("patch_size", 1, MAX_IMAGE_SIZE)
        size = vision.integer("image_size", patch, MAX_IMAGE_SIZE)
        merge = values.integer("scale_factor", 1, MAX_MERGE, 2)
        check_merge(values.where, "scale_factor", size // patch, merge)
        shape = read_vit_shape(vision, VISION_DEFAULTS)
        check_heads(vision.where, shape["width"], shape["heads"])
        return self.tower_config(
            **shape,
            has_class_row=False,
            patch=patch,
            image_size=size,
            merge=merge,
            activation=read_activation(vision, "hidden_act", GELU_TANH),
            out_width=text.integer("hidden_size", 1, MAX_WIDTH, TEXT_WIDTH),
        )


def with_one_side(vision: ConfigValues) -> ConfigValues:
    """Return a vision_config whose sizes are numbers: transformers also reads [side, side]."""
    found = dict(vision.values)
    for key in ("image_size", "patch_size"):
        value = found[key]
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            found[key] = value[0]
    return vision.with_values(found)


def check_merge(where: str, key: str, side: int, merge: int) -> None:
    """Raise ModelFileError unless `merge` divides the number of patches on a side."""
    if side % merge:
        raise ModelFileError(
            f"{where}: {key} is {merge}; it must divide the {side} patches of a side (image_size / patch_size)"
        )
