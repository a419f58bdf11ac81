"""Hugging Face folders of Granite 4 and of Bamba, which is Granite 4 without its scales and with half of each head
rotated."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf.granite import GRANITE_KEYS
from sporelm.checkpoints.hf.granitemoe import GraniteMoeForCausalLM
from sporelm.checkpoints.hf.jamba import JAMBA_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import LAYER, fused_gate_up_tensors
from sporelm.checkpoints.hybrid_layers import ATTENTION_TYPES, RECURRENT_TYPES, read_attention_layers
from sporelm.checkpoints.mamba_keys import mamba2_hf_keys, mamba2_hf_tensors, with_hf_mamba2_sizes
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.granite_hybrid import GraniteHybrid, GraniteHybridConfig
from sporelm.models.config import MAX_LAYERS, ModelConfig, Scales

ATTENTION: Final = "attention"
MAMBA: Final = "mamba"
BAMBA_SHARE: Final = 0.5  # rotated share of each head
_MAMBA_DEFAULTS: Final = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


def with_mamba_head_dim(values: ConfigValues) -> ConfigValues:
    """Return the values with a number in place of "auto" for the width of Mamba heads."""
    if values.get("mamba_d_head", "auto") != "auto":
        return values
    width, expand, heads = (values.get(key) for key in ("hidden_size", "mamba_expand", "mamba_n_heads"))
    if any(type(each) is not int or each <= 0 for each in (width, expand, heads)):
        return values
    return values.with_changes({"mamba_d_head": width * expand // heads})


def with_granite_keys(values: ConfigValues) -> ConfigValues:
    """Return a config.json of Bamba with the keys of Granite 4. Raises UnsupportedModel for another rotary share,
    ModelFileError for layers that are not numbers."""
    rotary = [values.get(key) for key in ("rope_parameters", "rope_scaling")]
    share = next((each[PARTIAL] for each in rotary if isinstance(each, dict) and PARTIAL in each), BAMBA_SHARE)
    if share != BAMBA_SHARE:
        raise UnsupportedModel(f"{values.where}: {PARTIAL} is {format_value(share)}; Bamba rotates half of each head")
    attention = values.get("attn_layer_indices") or []
    if not isinstance(attention, list) or any(type(layer) is not int for layer in attention):
        raise ModelFileError(
            f"{values.where}: attn_layer_indices is {format_value(attention)}; it must be a list of layer numbers"
        )
    layers = values.integer("num_hidden_layers", 1, MAX_LAYERS)
    kinds = [(ATTENTION_TYPES if layer in attention else RECURRENT_TYPES)[0] for layer in range(layers)]
    return values.with_changes(
        {
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "layer_types": kinds,
            "position_embedding_type": "rope",
            "shared_intermediate_size": values.get("intermediate_size"),
            "num_local_experts": 0,
            PARTIAL: BAMBA_SHARE,
        }
    )


@register
class GraniteMoeHybridForCausalLM(HfSchema):
    """Granite 4. In models without experts, the shared expert is the feed-forward block."""

    model_type = "granitemoehybrid"
    architecture = GraniteHybrid
    keys = hf_keys(
        *GRANITE_KEYS,
        Key("mlp_bias", "mlp_bias", "bool"),
        *mamba2_hf_keys(
            conv_kernel="mamba_d_conv",
            num_heads="mamba_n_heads",
            num_groups="mamba_n_groups",
            state_size="mamba_d_state",
            head_dim="mamba_d_head",
            expand="mamba_expand",
            has_bias="mamba_proj_bias",
            has_conv_bias="mamba_conv_bias",
        ),
        *hf_expert_keys(
            count="num_local_experts",
            used="num_experts_per_tok",
            shared_ffn="shared_intermediate_size",
            optional=True,
        ),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "mamba_proj_bias": "mamba.has_bias",
        "mamba_conv_bias": "mamba.has_conv_bias",
    }
    defaults = {**GraniteMoeForCausalLM.defaults, "shared_intermediate_size": 1024, **_MAMBA_DEFAULTS}
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = {
        **GraniteMoeForCausalLM.tensors,
        **fused_gate_up_tensors(f"{LAYER}shared_mlp.input_linear.weight"),
        "layers.{}.ffn_down.weight": f"{LAYER}shared_mlp.output_linear.weight",
        **mamba2_hf_tensors(f"{LAYER}mamba."),
    }
    allows_partial_rotary = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        is_bamba = config.rotary not in (0, config.head_dim)
        return BambaForCausalLM() if is_bamba else GraniteMoeHybridForCausalLM()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_mamba_head_dim(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, GraniteHybridConfig)
        config = with_hf_mamba2_sizes(config, values)
        kinds = values.get("layer_types") or [MAMBA] * config.layers
        attention_layers = read_attention_layers(values, kinds, config.layers)
        ffn = config.ffn if config.experts else values.integer("shared_intermediate_size", 1, config.width * 64)
        self.check_rotary(config, values)
        rotary = config.rotary if values.get("position_embedding_type") == "rope" else 0
        return replace(config, ffn=ffn, rotary=rotary, attention_layers=attention_layers)

    def check_rotary(self, config: ModelConfig, values: ConfigValues) -> None:
        """Raise UnsupportedModel unless whole heads are rotated."""
        if config.rotary != config.head_dim:
            what = f"{config.rotary} of a head's {config.head_dim} dimensions are rotated ({PARTIAL})"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, GraniteHybridConfig)
        kinds = [ATTENTION if layer in config.attention_layers else MAMBA for layer in range(config.layers)]
        found = {"layer_types": kinds, "position_embedding_type": "rope" if config.rotary else "nope"}
        dense = {"shared_intermediate_size": config.ffn, "num_local_experts": 0, "num_experts_per_tok": 0}
        return found if config.experts else found | dense


@register
class BambaForCausalLM(GraniteMoeHybridForCausalLM):
    """Bamba."""

    model_type = "bamba"
    class_keys = {**GraniteMoeHybridForCausalLM.class_keys, "mlp_bias": "mlp_bias"}
    defaults = {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
        "num_hidden_layers": 32,
        **_MAMBA_DEFAULTS,
    }
    tensors = JAMBA_TENSORS | mamba2_hf_tensors(f"{LAYER}mamba.")

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return replace(super().config_from_json(with_granite_keys(values), dtype), scales=Scales())

    def check_rotary(self, config: ModelConfig, values: ConfigValues) -> None:
        """Accept any rotary share: `with_granite_keys` has set it."""

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, GraniteHybridConfig)
        scales = config.scales
        is_scaled = (scales.embedding, scales.residual, scales.logits, scales.attention) != (1, 1, 1, None)
        if config.experts or is_scaled:
            what = "half of each head is rotated and it has scales or experts, which config.json cannot represent"
            raise UnsupportedModel(what)
        return {"attn_layer_indices": sorted(config.attention_layers)}
