"""Hugging Face folders of CogVLM and CogVLM2: EVA2-CLIP-E and its projector.

Keys and names: configuration_cogvlm.py and visual.py in the authors' folders.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.cogvlm import KV_HEADS
from sporelm.checkpoints.rope_writing import to_shortest_float
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.clip_folders import ACTIVATION_NAMES, check_heads, read_activation
from sporelm.checkpoints.towers.hf.internvl import check_squares
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import (
    MAX_IMAGE_SIZE,
    FolderLayout,
    TowerHfSchema,
    inner_values,
    patch_kernel,
    read_vit_shape,
)
from sporelm.checkpoints.transforms import FlattenKernel, PermuteColumns, Squeeze, TakeRows
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH
from sporelm.models.grouped_tower import CLASS, POSITIONS
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.cogvlm import BEGIN, END, CogVLMTower, CogVLMTowerConfig

VISION: Final = "model.vision."
LAYER: Final = f"{VISION}transformer.layers.{{}}."
MERGE: Final = 2  # of CogVLM2, which has a convolution after the layers


def merge_kernel(config: TowerConfig) -> tuple[int, ...]:
    """Return the shape of one output's weight in the convolution over squares of patches."""
    return (config.width, config.merge, config.merge)


def merge_columns(config: TowerConfig) -> NDArray[np.int64]:
    """Return the columns of the flattened weight in patch-major order: all channels of a patch, then the next."""
    return np.arange(config.width * config.merge**2).reshape(config.width, -1).T.reshape(-1)


@register_tower
class CogVLMHf(TowerHfSchema):
    """`CogVLMForCausalLM`."""

    architecture = CogVLMTower
    layout = FolderLayout("CogVLMForCausalLM", "cogvlm", "", ("", ""), {}, is_flat=True)
    prefixes = (VISION,)
    tensors = {
        CLASS: f"{VISION}patch_embedding.cls_embedding",
        POSITIONS: f"{VISION}patch_embedding.position_embedding.weight",
        "patches.weight": StoredAs(f"{VISION}patch_embedding.proj.weight", FlattenKernel(patch_kernel)),
        "patches.bias": f"{VISION}patch_embedding.proj.bias",
        **{
            f"layers.{{}}.attn_{name}.{part}": StoredAs(f"{LAYER}attention.query_key_value.{part}", TakeRows(rows))
            for name, rows in QKV_ROWS.items()
            for part in PARTS
        },
        **{
            f"layers.{{}}.{ours}.{part}": f"{LAYER}{stored}.{part}"
            for ours, stored in {
                "attn_o": "attention.dense",
                "attn_norm": "input_layernorm",
                "ffn_norm": "post_attention_layernorm",
                "ffn_up": "mlp.fc1",
                "ffn_down": "mlp.fc2",
            }.items()
            for part in PARTS
        },
        "merge.weight": StoredAs(f"{VISION}conv.weight", FlattenKernel(merge_kernel), PermuteColumns(merge_columns)),
        "merge.bias": f"{VISION}conv.bias",
        "projector_input.weight": f"{VISION}linear_proj.linear_proj.weight",
        **{f"projector_norm.{part}": f"{VISION}linear_proj.norm1.{part}" for part in PARTS},
        "projector_gate.weight": f"{VISION}linear_proj.gate_proj.weight",
        "projector_up.weight": f"{VISION}linear_proj.dense_h_to_4h.weight",
        "projector_down.weight": f"{VISION}linear_proj.dense_4h_to_h.weight",
        BEGIN: StoredAs(f"{VISION}boi", Squeeze((0,))),
        END: StoredAs(f"{VISION}eoi", Squeeze((0,))),
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config")
        heads = vision.get("num_heads", vision.get("num_attention_heads"))
        vision = vision.with_changes({"num_attention_heads": heads})
        shape = read_vit_shape(vision, {"layer_norm_eps": 1e-6})
        check_heads(vision.where, shape["width"], shape["heads"])
        patch = vision.integer("patch_size", 1, MAX_IMAGE_SIZE)
        size = vision.integer("image_size", patch, MAX_IMAGE_SIZE)
        positions = vision.integer("num_positions", 2, MAX_IMAGE_SIZE**2)
        side = size // patch
        if positions != side**2 + 1:
            raise ModelFileError(
                f"{vision.where}: num_positions is {positions}; it must be {side**2 + 1}, one for each patch and one"
                " for the class (image_size, patch_size)"
            )
        merge = MERGE if values.has(KV_HEADS) else 1
        check_squares(vision.where, side, merge, KV_HEADS)
        return self.tower_config(
            **shape,
            patch=patch,
            image_size=size,
            grid_side=side,
            channels=vision.integer("in_channels", 3, 3, 3),
            merge=merge,
            activation=read_activation(vision, "hidden_act", "gelu"),
            out_width=values.integer("hidden_size", 1, MAX_WIDTH),
            projector_ffn=values.integer("intermediate_size", 1, MAX_WIDTH),
        )

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, CogVLMTowerConfig)
        vision = {
            "hidden_size": config.width,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_heads": config.heads,
            "layer_norm_eps": to_shortest_float(config.eps),
            "hidden_act": ACTIVATION_NAMES[config.activation],
            "image_size": config.image_size,
            "patch_size": config.patch,
            "num_positions": config.grid_side**2 + 1,
            "in_channels": config.channels,
            "dropout_prob": 0.0,
        }
        return {"vision_config": vision}
