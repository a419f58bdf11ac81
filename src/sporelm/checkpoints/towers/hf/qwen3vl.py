"""Hugging Face folders of Qwen3-VL: its vision tower."""

from math import isqrt
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.checkpoints.towers.hf.qwen2vl import (
    QWEN_NAMES,
    QWEN_TENSORS,
    QWEN_TOKENS,
    Qwen2VLTowerHf,
    check_heads,
    qwen_json,
    read_qwen_shape,
)
from sporelm.checkpoints.towers.hf.qwen25vl import read_layer_list
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE, FolderLayout, inner_values
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_WIDTH, ModelConfig
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.qwen3vl import TABLE, Qwen3VLTower

MERGER_NAMES = (("norm", "norm"), ("up", "linear_fc1"), ("down", "linear_fc2"))
DEEPSTACK = (8, 16, 24)


@register_tower
class Qwen3VLTowerHf(Qwen2VLTowerHf):
    """`Qwen3VLForConditionalGeneration` and `Qwen3VLMoeForConditionalGeneration`."""

    architecture = Qwen3VLTower
    layout = FolderLayout("Qwen3VLForConditionalGeneration", "qwen3_vl", "", QWEN_NAMES, QWEN_TOKENS)
    tensors = QWEN_TENSORS | {
        "patches.bias": "visual.patch_embed.proj.bias",
        TABLE: "visual.pos_embed.weight",
        **{
            f"layers.{{}}.{ours}.{part}": f"visual.blocks.{{}}.{stored}.{part}"
            for ours, stored in (
                ("attn_norm", "norm1"),
                ("ffn_norm", "norm2"),
                ("ffn_up", "mlp.linear_fc1"),
                ("ffn_down", "mlp.linear_fc2"),
            )
            for part in PARTS
        },
        **{
            f"projector_{ours}.{part}": f"visual.merger.{stored}.{part}"
            for ours, stored in MERGER_NAMES
            for part in PARTS
        },
    }

    def tensor_table(self, config: ModelConfig) -> TensorTable:
        """Add the mergers of the DeepStack levels."""
        assert isinstance(config, TowerConfig)
        return self.tensors | {
            f"level{level}_{ours}.{part}": f"visual.deepstack_merger_list.{level}.{stored}.{part}"
            for level in range(len(config.deepstack))
            for ours, stored in MERGER_NAMES
            for part in PARTS
        }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision = inner_values(values, "vision_config")
        width = vision.integer("hidden_size", 1, MAX_WIDTH, 1152)
        shape = read_qwen_shape(
            vision, {"depth": 27, "num_heads": 16, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh"}
        )
        check_heads(vision.where, width, shape["heads"])
        positions = vision.integer("num_position_embeddings", 1, MAX_WIDTH, 2304)
        if isqrt(positions) ** 2 != positions:
            raise ModelFileError(
                f"{vision.where}: num_position_embeddings is {positions}; it must be the square of a number"
            )
        return self.tower_config(
            **shape,
            width=width,
            ffn=vision.integer("intermediate_size", 1, MAX_WIDTH, 4304),
            out_width=vision.integer("out_hidden_size", 1, MAX_WIDTH, 3584),
            context_length=positions,
            image_size=min(isqrt(positions) * shape["patch"], MAX_IMAGE_SIZE),
            deepstack=read_layer_list(vision, "deepstack_visual_indexes", DEEPSTACK, shape["layers"]),
        )

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        return {
            "vision_config": {
                **qwen_json(config),
                "hidden_size": config.width,
                "intermediate_size": config.ffn,
                "out_hidden_size": config.out_width,
                "num_position_embeddings": config.context_length,
                "deepstack_visual_indexes": list(config.deepstack),
            }
        }
