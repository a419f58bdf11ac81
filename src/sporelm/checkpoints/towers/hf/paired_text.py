"""Hugging Face folders of CLIP and SigLIP: their text encoders."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.towers.clip_folders import (
    CLIP_DEFAULTS,
    SIGLIP_DEFAULTS,
    check_heads,
    layer_tensors,
    read_activation,
)
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import TowerHfSchema, inner_values, read_vit_shape
from sporelm.models.config import MAX_VOCAB, MAX_WIDTH
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.paired_text import PairedTextTower

TEXT: Final = "text_model."
# Defaults of transformers' CLIPTextConfig and SiglipTextConfig, beyond those of the image encoders.
TOKENS: Final = {"pad_token_id": 1, "eos_token_id": 49407}
CLIP_TEXT: Final[dict[str, Any]] = {
    **CLIP_DEFAULTS,
    **TOKENS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
}
SIGLIP_TEXT: Final = SIGLIP_DEFAULTS | TOKENS | {"vocab_size": 32000, "max_position_embeddings": 64}
MAX_TOKENS: Final = 1 << 15  # of a text


@register_tower
class PairedTextHf(TowerHfSchema):
    """The text half of `CLIPModel` and `SiglipModel`."""

    architecture = PairedTextTower
    prefixes = (TEXT, "text_projection.")
    ignored_tensors = (f"{TEXT}embeddings.position_ids",)
    tensors = {
        "embedding.weight": f"{TEXT}embeddings.token_embedding.weight",
        "positions.weight": f"{TEXT}embeddings.position_embedding.weight",
        **layer_tensors(TEXT),
        **{f"last_norm.{part}": f"{TEXT}final_layer_norm.{part}" for part in PARTS},
        "projection.weight": (f"{TEXT}head.weight", "text_projection.weight"),
        "projection.bias": f"{TEXT}head.bias",
    }

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        text = inner_values(values, "text_config")
        is_clip = values.get("architectures") == ["CLIPModel"]
        defaults = CLIP_TEXT if is_clip else SIGLIP_TEXT
        shape = read_vit_shape(text, defaults)
        check_heads(text.where, shape["width"], shape["heads"])
        width = (
            values.integer("projection_dim", 1, MAX_WIDTH, 512)
            if is_clip
            else text.integer("projection_size", 1, MAX_WIDTH, shape["width"])
        )
        vocab = text.integer("vocab_size", 1, MAX_VOCAB, defaults["vocab_size"])
        return self.tower_config(
            **shape,
            vocab=vocab,
            context_length=text.integer("max_position_embeddings", 1, MAX_TOKENS, defaults["max_position_embeddings"]),
            patch=1,
            activation=read_activation(text, "hidden_act", defaults["hidden_act"]),
            out_width=width,
            is_causal=is_clip,
            end_token=text.integer("eos_token_id", 0, MAX_VOCAB, defaults["eos_token_id"]),
            pad_token=text.integer("pad_token_id", 0, MAX_VOCAB, defaults["pad_token_id"]),
        )
