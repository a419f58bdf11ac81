"""Hugging Face folders of InternVL: the class of transformers, and that of the authors' code.

Keys and defaults: transformers' InternVLVisionConfig and InternVLConfig; configuration_intern_vit.py and
configuration_internvl_chat.py in the authors' folders.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.multimodal_text import INTERNVL_CHAT, LLM_CONFIG
from sporelm.checkpoints.rope_writing import to_shortest_float
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, with_alternatives
from sporelm.checkpoints.towers.clip_folders import ACTIVATION_NAMES, check_heads, read_activation
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import (
    MAX_IMAGE_SIZE,
    FolderLayout,
    TowerHfSchema,
    inner_values,
    patch_kernel,
    read_vit_shape,
)
from sporelm.checkpoints.transforms import FlattenKernel, Squeeze, TakeRows
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_WIDTH, ModelConfig
from sporelm.models.grouped_tower import CLASS, POSITIONS
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.internvl import InternVLTower, InternVLTowerConfig

MAX_TILES: Final = 1 << 10
MAX_MERGE: Final = 8
DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
    "norm_type": "layer_norm",
}
CHAT_DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "layer_norm_eps": 1e-6,
    "image_size": 224,
    "patch_size": 14,
    "norm_type": "rms_norm",
}
QK_EPS: Final = 1e-6  # of queries and keys in transformers' class, which does not read `layer_norm_eps` for them

# InternVLForConditionalGeneration.
TENSORS: Final[TensorTable] = {
    CLASS: StoredAs("vision_tower.embeddings.cls_token", Squeeze((0,))),
    POSITIONS: StoredAs("vision_tower.embeddings.position_embeddings", Squeeze((0,))),
    "patches.weight": StoredAs(
        "vision_tower.embeddings.patch_embeddings.projection.weight", FlattenKernel(patch_kernel)
    ),
    "patches.bias": "vision_tower.embeddings.patch_embeddings.projection.bias",
    **{
        f"layers.{{}}.{ours}.{part}": f"vision_tower.encoder.layer.{{}}.{stored}.{part}"
        for ours, stored in {
            **{f"attn_{name}": f"attention.{name}_proj" for name in "qkv"},
            **{f"attn_{name}_norm": f"attention.{name}_norm" for name in "qk"},
            "attn_o": "attention.projection_layer",
            "attn_norm": "layernorm_before",
            "ffn_norm": "layernorm_after",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        }.items()
        for part in PARTS
    },
    "layers.{}.attn_scale.weight": "vision_tower.encoder.layer.{}.lambda_1",
    "layers.{}.ffn_scale.weight": "vision_tower.encoder.layer.{}.lambda_2",
    **{f"projector_norm.{part}": f"multi_modal_projector.layer_norm.{part}" for part in PARTS},
    **{f"projector_up.{part}": f"multi_modal_projector.linear_1.{part}" for part in PARTS},
    **{f"projector_down.{part}": f"multi_modal_projector.linear_2.{part}" for part in PARTS},
}
# InternVLChatModel.
CHAT_TENSORS: Final[TensorTable] = {
    CLASS: StoredAs("vision_model.embeddings.class_embedding", Squeeze((0,))),
    POSITIONS: StoredAs("vision_model.embeddings.position_embedding", Squeeze((0,))),
    "patches.weight": StoredAs("vision_model.embeddings.patch_embedding.weight", FlattenKernel(patch_kernel)),
    "patches.bias": "vision_model.embeddings.patch_embedding.bias",
    **{
        f"layers.{{}}.attn_{name}.{part}": StoredAs(f"vision_model.encoder.layers.{{}}.attn.qkv.{part}", TakeRows(rows))
        for name, rows in QKV_ROWS.items()
        for part in PARTS
    },
    **{
        f"layers.{{}}.{ours}.{part}": f"vision_model.encoder.layers.{{}}.{stored}.{part}"
        for ours, stored in {
            **{f"attn_{name}_norm": f"attn.{name}_norm" for name in "qk"},
            "attn_o": "attn.proj",
            "attn_norm": "norm1",
            "ffn_norm": "norm2",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        }.items()
        for part in PARTS
    },
    "layers.{}.attn_scale.weight": "vision_model.encoder.layers.{}.ls1",
    "layers.{}.ffn_scale.weight": "vision_model.encoder.layers.{}.ls2",
    **{f"projector_norm.{part}": f"mlp1.0.{part}" for part in PARTS},
    **{f"projector_up.{part}": f"mlp1.1.{part}" for part in PARTS},
    **{f"projector_down.{part}": f"mlp1.3.{part}" for part in PARTS},
}


def read_side(values: ConfigValues, key: str, low: int = 1) -> int:
    """Return the side of a square that a key gives as one number, or as two equal ones."""
    value = values.get(key)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        values = values.with_changes({key: value[0]})
    return values.integer(key, low, MAX_IMAGE_SIZE)


def find_unused_layers(names: Iterable[str], layers: int, *markers: str) -> set[str]:
    """Return the tensor names of layers from index `layers` on; a layer's index follows one of the markers."""
    found = set()
    for name in names:
        number = next((name.partition(each)[2].partition(".")[0] for each in markers if each in name), "")
        if number.isascii() and number.isdigit() and int(number) >= layers:
            found.add(name)
    return found


@register_tower
class InternVLHf(TowerHfSchema):
    """`InternVLForConditionalGeneration` and `InternVLChatModel`."""

    architecture = InternVLTower
    layout = FolderLayout(
        "InternVLForConditionalGeneration", "internvl", "language_model.", ("", ""), {"image_token_id": "<IMG_CONTEXT>"}
    )
    prefixes = (
        *("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector."),
        *("vision_model.", "mlp1."),
    )
    optional_prefixes = ("model.",)
    ignored_tensors = tuple(f"{front}vision_tower.embeddings.mask_token" for front in ("", "model."))
    tensors = with_alternatives(TENSORS, CHAT_TENSORS)

    def find_ignored(self, names: Iterable[str], config: ModelConfig | None = None) -> set[str]:
        names = list(names)
        found = super().find_ignored(names, config)
        return found | (
            find_unused_layers(names, config.layers, "encoder.layer.", "encoder.layers.") if config else set()
        )

    def config_from_json(self, values: ConfigValues) -> InternVLTowerConfig:
        is_chat = INTERNVL_CHAT in (values.get("architectures") or [])
        defaults = CHAT_DEFAULTS if is_chat else DEFAULTS
        vision = inner_values(values, "vision_config")
        vision = vision.with_values({**defaults, **vision.values})
        text = inner_values(values, LLM_CONFIG if is_chat else "text_config")
        more = _read_chat(values, vision) if is_chat else _read_transformers(values, vision)
        norm = vision.text("norm_type")
        if norm not in ("layer_norm", "rms_norm"):
            raise UnsupportedModel(
                f"{vision.where}: norm_type is not supported (got {norm!r}; allowed layer_norm, rms_norm)"
            )
        shape = read_vit_shape(vision, defaults)
        check_heads(vision.where, shape["width"], shape["heads"])
        patch, learned = read_side(vision, "patch_size"), read_side(vision, "image_size")
        size = more.pop("image_size", learned)
        layers = shape.pop("layers")
        layer = values.integer("select_layer" if is_chat else "vision_feature_layer", -layers - 1, layers, -1)
        config = self.tower_config(
            **shape,
            layers=layer if layer >= 0 else layers + 1 + layer,
            patch=patch,
            image_size=size,
            grid_side=learned // patch,
            merge=read_merge(values, size // patch),
            rms_norms=norm == "rms_norm",
            activation=read_activation(vision, "hidden_act", "gelu"),
            out_width=text.integer("hidden_size", 1, MAX_WIDTH, 4096),
            **more,
        )
        assert isinstance(config, InternVLTowerConfig)
        return config

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, InternVLTowerConfig)
        _check_expressible(config)
        vision = {
            "model_type": "internvl_vision",
            "hidden_size": config.width,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "attention_bias": config.attention_bias,
            "use_qk_norm": config.qk_eps > 0,
            "norm_type": "rms_norm" if config.rms_norms else "layer_norm",
            "layer_norm_eps": to_shortest_float(config.eps),
            "hidden_act": ACTIVATION_NAMES[config.activation],
            "image_size": [config.grid_side * config.patch] * 2,
            "patch_size": [config.patch] * 2,
        }
        return {
            "vision_config": vision,
            "image_seq_length": config.tile_rows,
            "downsample_ratio": 1 / config.merge,
            "projector_hidden_act": ACTIVATION_NAMES[config.projector_act],
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
        }


def _check_expressible(config: InternVLTowerConfig) -> None:
    """Raise UnsupportedModel for a tower that the class of transformers cannot describe."""
    has_whole = config.has_thumbnail or config.max_tiles == 1
    given: dict[str, tuple[Any, Any]] = {
        "ps_version": ("v1" if config.transposed else "v2", "v2"),
        "the epsilon of queries and keys": (to_shortest_float(config.qk_eps or QK_EPS), QK_EPS),
        "use_thumbnail": (has_whole, True),
    }
    for what, (value, allowed) in given.items():
        if value != allowed:
            raise UnsupportedModel(f"vision tower: folders cannot express {what} (got {value!r}; allowed {allowed!r})")


def read_merge(values: ConfigValues, side: int) -> int:
    """Return the side of the squares of patches that pixel shuffle joins: the inverse of `downsample_ratio`.

    side   patches along a side of a tile, which must be whole squares
    """
    ratio = values.number("downsample_ratio", 1 / MAX_MERGE, 1.0, 0.5)
    merge = round(1 / ratio)
    if abs(merge * ratio - 1) > 1e-6:
        raise ModelFileError(f"{values.where}: downsample_ratio is {ratio}; it must be 1 divided by an integer")
    check_squares(values.where, side, merge, "downsample_ratio")
    return merge


def check_squares(where: str, side: int, merge: int, key: str) -> None:
    """Raise ModelFileError unless a tile with this number of patches a side is whole squares of patches."""
    if side < 1 or side % merge:
        raise ModelFileError(
            f"{where}: a tile has {side} patches a side; it must be a positive multiple of {merge} (image_size, "
            f"patch_size, {key})"
        )


def _read_transformers(values: ConfigValues, vision: ConfigValues) -> dict[str, Any]:
    """Return the fields that only the class of transformers has, or that it names differently."""
    for key, allowed in (("use_absolute_position_embeddings", True), ("use_mean_pooling", True)):
        if vision.flag(key, allowed) is not allowed:
            raise UnsupportedModel(f"{vision.where}: {key} is not supported (got {not allowed}; allowed {allowed})")
    if (strategy := values.text("vision_feature_select_strategy", "default")) != "default":
        raise UnsupportedModel(
            f"{values.where}: vision_feature_select_strategy is not supported (got {strategy!r}; allowed default)"
        )
    return {
        "attention_bias": vision.flag("attention_bias", False),
        "qk_eps": QK_EPS if vision.flag("use_qk_norm", False) else 0.0,
        "projector_act": read_activation(values, "projector_hidden_act", "gelu"),
    }


def _read_chat(values: ConfigValues, vision: ConfigValues) -> dict[str, Any]:
    """Return the fields that only the authors' class has, or that it names differently."""
    version = values.text("ps_version", "v1")
    if version not in ("v1", "v2"):
        raise UnsupportedModel(f"{values.where}: ps_version is not supported (got {version!r}; allowed v1, v2)")
    if (values.get("use_backbone_lora") or 0) != 0 or (values.get("use_llm_lora") or 0) != 0:
        lora = format_value([values.get(key) for key in ("use_backbone_lora", "use_llm_lora")])
        raise UnsupportedModel(
            f"{values.where}: use_backbone_lora and use_llm_lora are not supported (got {lora}; allowed 0). Merge them."
        )
    least = values.integer("min_dynamic_patch", 1, MAX_TILES, 1)
    found: Mapping[str, Any] = {
        "attention_bias": vision.flag("qkv_bias", False),
        "qk_eps": vision.number("layer_norm_eps", 0.0, 1.0) if vision.flag("qk_normalization", True) else 0.0,
        "transposed": version == "v1",
        "min_tiles": least,
        "max_tiles": values.integer("max_dynamic_patch", least, MAX_TILES, 6),
        "has_thumbnail": values.flag("use_thumbnail", False),
    }
    if not values.flag("dynamic_image_size", False):
        found = {**found, "min_tiles": 1, "max_tiles": 1}
    if values.has("force_image_size"):
        found = {**found, "image_size": values.integer("force_image_size", 1, MAX_IMAGE_SIZE)}
    return dict(found)
