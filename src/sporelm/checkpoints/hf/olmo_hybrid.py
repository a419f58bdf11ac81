"""Hugging Face folders of OLMo Hybrid."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import DELTA_NET_HF_KEYS, split_conv_tensors, with_delta_net_layers
from sporelm.checkpoints.gguf.olmo_hybrid import with_last_layer_attention
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, LAYER, POST_NORM_TENSORS
from sporelm.checkpoints.row_cuts import RowCut
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import NegativeExp
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.olmo_hybrid import OlmoHybrid, OlmoHybridConfig
from sporelm.models.config import MAX_WIDTH, ModelConfig

DELTA_NET: Final = f"{LAYER}linear_attn."


def with_default_heads(values: ConfigValues) -> ConfigValues:
    """Return the values with default heads of the delta nets, derived from the shape. Raises UnsupportedModel for null
    rotary parameters."""
    if "rope_parameters" in values.values and values.get("rope_parameters") is None:
        why = "may mean positions that are rotated or not; give it a rope_theta, null for none"
        raise UnsupportedModel(f"rope_parameters is null, which {why}")
    heads: Any = values.get("num_attention_heads")
    width: Any = values.get("hidden_size")
    found: dict[str, Any] = {**values.values, "head_dim": None}
    for part in ("key", "value"):
        name = f"linear_num_{part}_heads"
        if found.get(name) is None:
            found[name] = heads
    key_heads = found["linear_num_key_heads"]
    if found.get("linear_key_head_dim") is None and all(type(each) is int and each > 0 for each in (key_heads, width)):
        found["linear_key_head_dim"] = 3 * min(width, MAX_WIDTH) // (4 * key_heads)
    key_head_dim = found.get("linear_key_head_dim")
    if found.get("linear_value_head_dim") is None and type(key_head_dim) is int:
        found["linear_value_head_dim"] = 2 * key_head_dim
    return values.with_values(found)


def has_null_theta(values: ConfigValues) -> bool:
    """Return whether the rotary base is null, which means no positions."""
    rope: Any = values.get("rope_parameters") or {}
    holder = rope if "rope_theta" in rope else values.values
    return "rope_theta" in holder and holder["rope_theta"] is None


@register
class OlmoHybridForCausalLM(HfSchema):
    """OLMo Hybrid. transformers 5 gives norms of attention layers the names of those in delta nets."""

    model_type = "olmo_hybrid"
    architecture = OlmoHybrid
    keys = hf_keys(
        *HF_ATTENTION_BIAS,
        *DELTA_NET_HF_KEYS,
        Key("has_negative_eigenvalues", "linear_allow_neg_eigval", "bool", default=True),
    )
    defaults = {"max_position_embeddings": 65536, "linear_conv_kernel_dim": 4}
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        "layers.{}.attn_norm.weight": f"{LAYER}attention_layer_norm.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}feedforward_layer_norm.weight",
        **{f"layers.{{}}.delta_{name}.weight": f"{DELTA_NET}{name}_proj.weight" for name in "qkv"},
        **split_conv_tensors(DELTA_NET),
        "layers.{}.delta_alpha.weight": f"{DELTA_NET}a_proj.weight",
        "layers.{}.delta_beta.weight": f"{DELTA_NET}b_proj.weight",
        "layers.{}.delta_z.weight": f"{DELTA_NET}g_proj.weight",
        "layers.{}.delta.decay": StoredAs(f"{DELTA_NET}A_log", NegativeExp()),
        "layers.{}.delta_dt.bias": f"{DELTA_NET}dt_bias",
        "layers.{}.delta_norm.weight": f"{DELTA_NET}o_norm.weight",
        "layers.{}.delta_o.weight": f"{DELTA_NET}o_proj.weight",
    }
    resaved_names = ((".post_attention_layernorm.", ".feedforward_layer_norm."),)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_default_heads(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, OlmoHybridConfig)
        config = with_last_layer_attention(with_delta_net_layers(config, values, is_gguf=False), values)
        return replace(config, rotary=0) if has_null_theta(values) else config

    def row_cuts(self, config: ModelConfig) -> list[RowCut]:
        """Return the convolutions of queries, keys and values. transformers joins them in memory and saves three equal
        parts."""
        assert isinstance(config, OlmoHybridConfig)
        shape = config.delta_net
        key_rows = shape.num_key_heads * shape.key_head_dim
        layers = [layer for layer in range(config.layers) if layer not in config.attention_layers]
        names = [[f"{DELTA_NET}{part}_conv1d.weight".replace("{}", str(layer)) for part in "qkv"] for layer in layers]
        return [RowCut(each, (key_rows, key_rows, shape.inner_size)) for each in names]
