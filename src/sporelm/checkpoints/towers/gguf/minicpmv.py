"""mmproj files of MiniCPM-V, as llama.cpp's tools/mtmd/legacy-models/minicpmv-convert-image-encoder-to-gguf.py writes
them."""

from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.hf.minicpmv import NORMS, NUMBERS, check_resampler
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.minicpmv import QUERY, MinicpmvTower, MinicpmvTowerConfig, grid_positions

VERSION: Final = "clip.minicpmv_version"
QUERY_NUM: Final = "clip.minicpmv_query_num"
SLICE_KEY: Final = f"{VISION}image_size"  # the side of a slice here, not that of the learned positions
SLICE: Final = 448
KEY_TABLE: Final = "resampler.pos_embed_k"
TABLE_SIDE: Final = 70  # positions of a side


@register_tower
class MinicpmvGguf(VitGgufSchema):
    """`clip.projector_type` "resampler"."""

    architecture = MinicpmvTower
    projectors = ("resampler",)
    ignored_tensors = (KEY_TABLE, "resampler.pos_embed")
    tensors = {
        **VIT_TENSORS,
        **{f"last_norm.{part}": f"v.post_ln.{part}" for part in PARTS},
        QUERY: "resampler.query",
        "resampler.kv.weight": "resampler.kv.weight",
        **{f"resampler.attn_{name}.{part}": f"resampler.attn.{name}.{part}" for name in "qkv" for part in PARTS},
        **{f"resampler.attn_o.{part}": f"resampler.attn.out.{part}" for part in PARTS},
        **{
            f"resampler.{name}.{part}": f"resampler.{stored}.{part}" for name, stored in NORMS.items() for part in PARTS
        },
        "projector.weight": "resampler.proj.weight",
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        values, shape = ConfigValues(gguf.metadata, gguf.where), read_vit_metadata(gguf)
        version = values.get(VERSION)
        if version not in NUMBERS.values():
            known = ", ".join(map(str, NUMBERS.values()))
            raise UnsupportedModel(
                f"{gguf.where}: {VERSION} is not supported (got {format_value(version)}; allowed {known})"
            )
        query, positions = (gguf.shapes.get(name, ()) for name in ("resampler.query", "v.position_embd.weight"))
        for name, found in (("resampler.query", query), ("v.position_embd.weight", positions)):
            if len(found) != 2 or not all(found):
                raise ModelFileError(f"{gguf.where}: {name} must be a matrix (got shape {format_value(found)})")
        side = isqrt(positions[0])
        if side**2 != positions[0]:
            raise ModelFileError(
                f"{gguf.where}: v.position_embd.weight has {positions[0]} rows; it must have those of a square"
            )
        queries = values.integer(QUERY_NUM, 0, query[0], query[0]) or query[0]  # 0 in older files
        if queries != query[0]:
            raise ModelFileError(f"{gguf.where}: {QUERY_NUM} is {queries}; resampler.query has {query[0]} rows")
        check_resampler(gguf.where, query[1])
        image_size = side * shape["patch"]
        return self.tower_config(
            **{**shape, "image_size": image_size}, out_width=query[1], version=version, queries=queries
        )

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, MinicpmvTowerConfig)
        return {
            **vit_metadata(config, self.projectors[0]),
            "clip.has_minicpmv_projector": ("bool", True),
            SLICE_KEY: ("u32", SLICE),
            VERSION: ("i32", config.version),
            QUERY_NUM: ("u32", config.queries),
        }

    def extra_tensors(self, config: TowerConfig) -> dict[str, NDArray[np.float32]]:
        return {KEY_TABLE: grid_positions(TABLE_SIDE, TABLE_SIDE, config.out_width)}
