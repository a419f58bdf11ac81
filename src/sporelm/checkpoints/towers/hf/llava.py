"""Hugging Face folders of LLaVA 1.5: the ViT of CLIP or SigLIP, and a projector."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.multimodal_text import TEXT_MODELS
from sporelm.checkpoints.towers.clip_folders import (
    ACTIVATION_NAMES,
    CLIP_VISION,
    SIGLIP_VISION,
    ClipHfSchema,
    read_activation,
    read_vit,
    spell_names,
    spell_prefix,
    vit_json,
    vit_tensors,
)
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import FolderLayout, inner_values
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava import LlavaTower, LlavaTowerConfig

# Defaults of transformers' LlavaConfig for the tower: CLIP-L/14 at 336 pixels. They apply without a `vision_config`.
LLAVA_VISION: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
TOWER: Final = "vision_tower."
FRONTS: Final = ("", "model.")
INNER: Final = ("", "vision_model.")
MAX_FEATURES: Final = 16  # layers that the projector reads


def llava_layout(class_name: str, model_type: str) -> FolderLayout:
    """Return the layout of folders of LLaVA and LLaVA-NeXT, as they are published."""
    names = (TOWER, f"{TOWER}vision_model.")
    return FolderLayout(class_name, model_type, "language_model.", names, {"image_token_index": "<image>"})


@register_tower
class LlavaHf(ClipHfSchema):
    """`LlavaForConditionalGeneration` with the tower of CLIP or SigLIP."""

    architecture: type[Tower[Any]] = LlavaTower
    layout = llava_layout("LlavaForConditionalGeneration", "llava")
    prefixes: tuple[str, ...] = tuple(
        f"{front}{name}" for front in FRONTS for name in (TOWER, "multi_modal_projector.")
    )
    optional_prefixes: tuple[str, ...] = ("model.",)
    prefix_variants = spell_prefix(TOWER, FRONTS, INNER)
    ignored_tensors = spell_names(TOWER, FRONTS, INNER, ("embeddings.position_ids", "post_layernorm.*", "head.*"))
    tensors = {
        **vit_tensors(TOWER),
        **{f"projector_up.{part}": f"multi_modal_projector.linear_1.{part}" for part in PARTS},
        **{f"projector_down.{part}": f"multi_modal_projector.linear_2.{part}" for part in PARTS},
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        return self.tower_config(**read_llava(values))

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, LlavaTowerConfig)
        return llava_json(config)


def read_llava(values: ConfigValues) -> dict[str, Any]:
    """Return the fields of `LlavaTowerConfig`. Raises as `TowerHfSchema.config_from_json`."""
    vision, text = inner_values(values, "vision_config"), inner_values(values, "text_config")
    if not vision.values:
        vision = vision.with_values(LLAVA_VISION)
    shape = read_vit(vision, CLIP_VISION, (SIGLIP_VISION,))
    strategy = values.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise UnsupportedModel(
            f"{values.where}: vision_feature_select_strategy is not supported (got {strategy!r}; allowed default, full)"
        )
    features = read_features(values, shape["layers"])
    shape["layers"] = max(features)
    return {
        **shape,
        "features": features,
        "drops_first_row": strategy == "default",
        "out_width": text.integer("hidden_size", 1, MAX_WIDTH, default_text_width(text)),
        "projector_act": read_activation(values, "projector_hidden_act", "gelu"),
        "projector_bias": values.flag("multimodal_projector_bias", True),
    }


def llava_json(config: LlavaTowerConfig) -> dict[str, Any]:
    """Return the keys of config.json beside the text model's."""
    features = list(config.features)
    return {
        "vision_config": vit_json(config),
        "vision_feature_layer": features[0] if len(features) == 1 else features,
        "vision_feature_select_strategy": "default" if config.drops_first_row else "full",
        "projector_hidden_act": ACTIVATION_NAMES[config.projector_act],
        "multimodal_projector_bias": config.projector_bias,
        "image_seq_length": config.kept_rows,
    }


def default_text_width(text: ConfigValues) -> int:
    """Return the default hidden size of a text model in transformers, for a config.json without it."""
    kind = text.get("model_type")
    known = TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    return (known or TEXT_MODELS["llama"]).hidden_size


def read_features(values: ConfigValues, layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers, from 1, whose outputs the projector reads: `vision_feature_layer`, one number
    or several. Negative ones count from the last layer, which is -1."""
    found = values.get("vision_feature_layer")
    found = -2 if found is None else found
    numbers = found if isinstance(found, list | tuple) else [found]
    is_valid = 0 < len(numbers) <= MAX_FEATURES and all(type(each) is int for each in numbers)
    counted = tuple(each if each >= 0 else layers + 1 + each for each in numbers) if is_valid else ()
    if not counted or not all(1 <= each <= layers for each in counted):
        raise ModelFileError(
            f"{values.where}: vision_feature_layer is {format_value(found)}; it must be a layer from 1 to {layers}, or "
            f"from -{layers} to -1, or a list of them"
        )
    return counted
