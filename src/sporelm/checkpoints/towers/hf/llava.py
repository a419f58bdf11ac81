"""Hugging Face folders of LLaVA 1.5 and LLaVA-NeXT: CLIP's tower."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import (
    MAX_IMAGE_SIZE,
    TowerHfSchema,
    inner_values,
    patch_kernel,
    read_vit_shape,
)
from sporelm.checkpoints.transforms import FlattenKernel, Unflatten
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava import CLASS, LlavaTower

# Defaults of transformers' CLIPVisionConfig.
CLIP_DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "layer_norm_eps": 1e-5,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
}
ACTIVATIONS: Final = {"quick_gelu": "gelu_quick", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
LAYER_NAMES: Final = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_o": "self_attn.out_proj",
    "attn_norm": "layer_norm1",
    "ffn_norm": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def vit_layer_tensors(prefix: str) -> TensorTable:
    """Return the tensors of the layers of CLIP and SigLIP, whose names begin with `prefix`."""
    return {
        f"layers.{{}}.{ours}.{part}": f"{prefix}{{}}.{stored}.{part}"
        for ours, stored in LAYER_NAMES.items()
        for part in PARTS
    }


def read_activation(values: ConfigValues, key: str, default: str) -> str:
    """Return the activation that a key names. Raises UnsupportedModel for another one."""
    name = values.text(key, default)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(f"{values.where}: {key} is not supported (got {format_value(name)}; allowed {known})")
    return ACTIVATIONS[name]


@register_tower
class LlavaHf(TowerHfSchema):
    """`LlavaForConditionalGeneration` with a CLIP tower."""

    architecture = LlavaTower
    prefixes = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.")
    optional_prefixes = ("model.",)
    prefix_variants = (
        ("vision_tower.", "vision_tower.vision_model."),
        ("vision_tower.", "model.vision_tower.vision_model."),
    )
    ignored_tensors = tuple(
        f"{front}vision_tower.{inner}{name}"
        for front in ("", "model.")
        for inner in ("", "vision_model.")
        for name in ("embeddings.position_ids", "post_layernorm.*")
    )
    tensors = {
        CLASS: StoredAs("vision_tower.embeddings.class_embedding", Unflatten()),
        "patches.weight": StoredAs("vision_tower.embeddings.patch_embedding.weight", FlattenKernel(patch_kernel)),
        "positions.weight": "vision_tower.embeddings.position_embedding.weight",
        **{f"first_norm.{part}": f"vision_tower.pre_layrnorm.{part}" for part in PARTS},
        **vit_layer_tensors("vision_tower.encoder.layers."),
        **{f"projector_up.{part}": f"multi_modal_projector.linear_1.{part}" for part in PARTS},
        **{f"projector_down.{part}": f"multi_modal_projector.linear_2.{part}" for part in PARTS},
    }

    def find_ignored(self, names: Any, config: Any = None) -> set[str]:
        """Ignore the layers past the one whose output the projector reads, too."""
        names = list(names)
        found = super().find_ignored(names, config)
        if config is None:
            return found
        kept = {str(layer) for layer in range(config.layers)}
        for name in names:
            _, marker, rest = name.partition("encoder.layers.")
            if marker and rest.partition(".")[0] not in kept:
                found.add(name)
        return found

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        vision, text = inner_values(values, "vision_config"), inner_values(values, "text_config")
        vision = vision.with_values({**CLIP_DEFAULTS, **vision.values})
        if vision.text("model_type", "clip_vision_model") != "clip_vision_model":
            kind = format_value(vision.get("model_type"))
            raise UnsupportedModel(
                f"{vision.where}: model_type is not supported (got {kind}; allowed clip_vision_model)"
            )
        shape = read_vit_shape(vision, CLIP_DEFAULTS)
        patch = vision.integer("patch_size", 1, MAX_IMAGE_SIZE)
        size = vision.integer("image_size", patch, MAX_IMAGE_SIZE)
        layer = values.integer("vision_feature_layer", -shape["layers"], shape["layers"], -2)
        strategy = values.text("vision_feature_select_strategy", "default")
        if strategy not in ("default", "full"):
            raise UnsupportedModel(
                f"{values.where}: vision_feature_select_strategy is not supported (got {strategy!r}; allowed default, "
                "full)"
            )
        shape["layers"] = layer if layer >= 0 else shape["layers"] + 1 + layer
        return self.tower_config(
            **shape,
            context_length=(size // patch) ** 2 + 1,
            patch=patch,
            image_size=size,
            activation=read_activation(vision, "hidden_act", "quick_gelu"),
            out_width=text.integer("hidden_size", 1, MAX_WIDTH, 4096),
            has_class_row=strategy == "full",
            projector_act=read_activation(values, "projector_hidden_act", "gelu"),
            projector_bias=values.flag("multimodal_projector_bias", True),
        )
