"""Bamba in Granite 4's words: the same layers without its scales, half of each head rotated, under Jamba's names."""

from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.tensor_names import COMMON, changed
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.families.jamba import BLOCK, LAYER, NORMS
from sporelm.models.families.layer_kinds import ATTENTION, OTHER
from sporelm.models.families.space_fields import space_names

BAMBA = "BambaForCausalLM"
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144}
NUMBERS |= {
    "num_hidden_layers": 32,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
NAMES = changed(COMMON, *NORMS, *BLOCK, *space_names(f"{LAYER}mamba."))
SCALES = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
HALF = 0.5


def as_granite(values: dict[str, Any]) -> dict[str, Any]:
    """Its config.json with the keys that Granite 4 has for the same. Raises UnsupportedModel for other shares of heads
    that are rotated, ModelFileError for what are no numbers of layers."""
    told = [values.get(key) for key in ("rope_parameters", "rope_scaling")]
    share = next((each[PARTIAL] for each in told if isinstance(each, dict) and PARTIAL in each), HALF)
    if share != HALF:
        raise UnsupportedModel(f"config.json: {PARTIAL} is {shown(share)}; Bamba rotates half of each head")
    attention = values.get("attn_layer_indices") or []
    if not isinstance(attention, list) or any(type(layer) is not int for layer in attention):
        raise ModelFileError(f"config.json: attn_layer_indices is {shown(attention)}; it must be numbers of layers")
    layers = Fields(values, "config.json").integer("num_hidden_layers", 1, MOST_LAYERS)
    kinds = [(ATTENTION if layer in attention else OTHER)[0] for layer in range(layers)]
    found = {**values, **dict.fromkeys(SCALES, 1.0), "layer_types": kinds, "position_embedding_type": "rope"}
    found |= {"shared_intermediate_size": values.get("intermediate_size"), "num_local_experts": 0, PARTIAL: HALF}
    return found


def words(config: ModelConfig) -> dict[str, Any]:
    """Its config.json of a GGUF file's configuration. Raises UnsupportedModel for what it has no word for."""
    scales = config.scales
    if config.experts or (scales.embedding, scales.residual, scales.logits, scales.attention) != (1, 1, 1, None):
        raise UnsupportedModel("half of each head is rotated, and it has scales or experts; config.json cannot say it")
    return {"attn_layer_indices": sorted(config.own.attention)}
