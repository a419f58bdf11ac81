"""Hugging Face folders of Qwen2.5-VL: its vision tower."""

from itertools import pairwise
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.hf.qwen2vl import (
    QWEN_NAMES,
    QWEN_TENSORS,
    QWEN_TOKENS,
    Qwen2VLTowerHf,
    check_heads,
    qwen_json,
    read_qwen_shape,
)
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE, FolderLayout, inner_values
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen25vl import Qwen25VLTower, Qwen25VLTowerConfig

FULL_LAYERS = (7, 15, 23, 31)


def read_layer_list(values: ConfigValues, key: str, default: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return a list of layers in ascending order. Raises ModelFileError for any other value."""
    found = values.get(key)
    found = list(default) if found is None else found
    is_list = isinstance(found, list | tuple) and all(type(each) is int and 0 <= each < layers for each in found)
    if not is_list or any(low >= high for low, high in pairwise(found)):
        raise ModelFileError(
            f"{values.where}: {key} is {format_value(found)}; it must be ascending numbers of layers below {layers}"
        )
    return tuple(found)


@register_tower
class Qwen25VLTowerHf(Qwen2VLTowerHf):
    """`Qwen2_5_VLForConditionalGeneration`."""

    architecture = Qwen25VLTower
    layout = FolderLayout("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "", QWEN_NAMES, QWEN_TOKENS)
    tensors = QWEN_TENSORS | {
        "layers.{}.attn_norm.weight": "visual.blocks.{}.norm1.weight",
        "layers.{}.ffn_norm.weight": "visual.blocks.{}.norm2.weight",
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"visual.blocks.{{}}.mlp.{name}_proj.{part}"
            for name in ("gate", "up", "down")
            for part in PARTS
        },
        "projector_norm.weight": "visual.merger.ln_q.weight",
        **{
            f"projector_{ours}.{part}": f"visual.merger.{stored}.{part}"
            for ours, stored in (("up", "mlp.0"), ("down", "mlp.2"))
            for part in PARTS
        },
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config")
        width = vision.integer("hidden_size", 1, MAX_WIDTH, 3584)
        shape = read_qwen_shape(vision, {"depth": 32, "num_heads": 16, "patch_size": 14, "hidden_act": "silu"})
        check_heads(vision.where, width, shape["heads"])
        full = read_layer_list(vision, "fullatt_block_indexes", FULL_LAYERS, max(shape["layers"], FULL_LAYERS[-1] + 1))
        return self.tower_config(
            **shape,
            width=width,
            ffn=vision.integer("intermediate_size", 1, MAX_WIDTH, 3420),
            out_width=vision.integer("out_hidden_size", 1, MAX_WIDTH, 3584),
            full_layers=frozenset(layer for layer in full if layer < shape["layers"]),
            window_size=vision.integer("window_size", shape["patch"] * shape["merge"], MAX_IMAGE_SIZE, 112),
        )

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, Qwen25VLTowerConfig)
        return {
            "vision_config": {
                **qwen_json(config),
                "hidden_size": config.width,
                "intermediate_size": config.ffn,
                "out_hidden_size": config.out_width,
                "window_size": config.window_size,
                "fullatt_block_indexes": sorted(config.full_layers),
            }
        }
