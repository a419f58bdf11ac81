"""Hugging Face folders of MiniCPM-V 2.5, 2.6, 4 and 4.5, and the vision part of MiniCPM-o 2.6 and 4.5.

Keys and names: configuration_minicpm.py and modeling_minicpmv.py in the folders that the models' authors publish.
"""

from typing import Any, Final

import numpy as np

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.multimodal_text import minicpm_version
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.clip_folders import ClipHfSchema, check_heads, layer_tensors, read_activation
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE, inner_values, patch_kernel, read_vit_shape
from sporelm.checkpoints.transforms import FlattenKernel, RowNumbers, TakeRows, Transpose
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.minicpmv import HEAD_DIM, QUERY, MinicpmvTower

VISION_DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "layer_norm_eps": 1e-6,
    "image_size": 980,
    "patch_size": 14,
}
VISION_TYPES: Final = ("siglip", "siglip_vision_model", "idefics2", "idefics2_vision")
# (class, version) -> the number that llama.cpp gives to the model.
NUMBERS: Final = {
    ("MiniCPMV", "2.5"): 2,
    ("MiniCPMV", "2.6"): 3,
    ("MiniCPMO", "2.6"): 4,
    ("MiniCPMV", "4.0"): 5,
    ("MiniCPMV", "4.5"): 6,
    ("MiniCPMO", "4.5"): 100045,
}
MAX_QUERIES: Final = 1 << 12
NORMS: Final = {"q_norm": "ln_q", "kv_norm": "ln_kv", "norm": "ln_post"}


def _rows(number: int) -> RowNumbers:
    return lambda config: np.arange(number * config.out_width, (number + 1) * config.out_width)


RESAMPLER: Final[TensorTable] = {
    QUERY: "resampler.query",
    "resampler.kv.weight": "resampler.kv_proj.weight",
    **{
        f"resampler.attn_{name}.{part}": StoredAs(f"resampler.attn.in_proj_{part}", TakeRows(_rows(number)))
        for number, name in enumerate("qkv")
        for part in PARTS
    },
    **{f"resampler.attn_o.{part}": f"resampler.attn.out_proj.{part}" for part in PARTS},
    **{f"resampler.{ours}.{part}": f"resampler.{stored}.{part}" for ours, stored in NORMS.items() for part in PARTS},
    "projector.weight": StoredAs("resampler.proj", Transpose()),
}


@register_tower
class MinicpmvHf(ClipHfSchema):
    """`MiniCPMV` and `MiniCPMO`, distinguished by `version`."""

    architecture = MinicpmvTower
    prefixes = ("vpm.", "resampler.")
    ignored_tensors = ("resampler.pos_embed", "vpm.embeddings.position_ids")
    tensors = {
        "patches.weight": StoredAs("vpm.embeddings.patch_embedding.weight", FlattenKernel(patch_kernel)),
        "patches.bias": "vpm.embeddings.patch_embedding.bias",
        "positions.weight": "vpm.embeddings.position_embedding.weight",
        **layer_tensors("vpm."),
        **{f"last_norm.{part}": f"vpm.post_layernorm.{part}" for part in PARTS},
        **RESAMPLER,
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        names = values.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else "MiniCPMV"
        version = minicpm_version(values.values)
        if (name, version) not in NUMBERS:
            known = ", ".join(each for class_name, each in NUMBERS if class_name == name)
            got = format_value(values.get("version"))
            raise UnsupportedModel(f"{values.where}: version of {name} is not supported (got {got}; allowed {known})")
        vision = inner_values(values, "vision_config")
        vision = vision.with_values({**VISION_DEFAULTS, **vision.values})
        if (kind := vision.get("model_type", VISION_TYPES[0])) not in VISION_TYPES:
            allowed = ", ".join(VISION_TYPES)
            raise UnsupportedModel(
                f"{vision.where}: model_type is not supported (got {format_value(kind)}; allowed {allowed})"
            )
        shape = read_vit_shape(vision, VISION_DEFAULTS)
        check_heads(vision.where, shape["width"], shape["heads"])
        if values.flag("drop_vision_last_layer", True):
            shape["layers"] -= 1
            if not shape["layers"]:
                raise ModelFileError(f"{values.where}: drop_vision_last_layer leaves no layer")
        patch = vision.integer("patch_size", 1, MAX_IMAGE_SIZE)
        width = values.integer("hidden_size", 1, MAX_WIDTH)
        check_resampler(values.where, width)
        return self.tower_config(
            **shape,
            patch=patch,
            image_size=vision.integer("image_size", patch, MAX_IMAGE_SIZE),
            activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
            out_width=width,
            version=NUMBERS[name, version],
            queries=values.integer("query_num", 1, MAX_QUERIES, 64),
        )


def check_resampler(where: str, width: int) -> None:
    """Raise UnsupportedModel unless the text model's width is a multiple of the resampler's head dimension."""
    if width % HEAD_DIM:
        raise UnsupportedModel(
            f"{where}: the resampler's width is not supported (got {width}; allowed multiples of {HEAD_DIM})"
        )
