"""Hugging Face folders of Qwen3-Next."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import (
    ATTENTION_INTERVAL_KEY,
    DELTA_NET_HF_KEYS,
    layer_types_json,
    with_delta_net_layers,
)
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.qwen3next import BETA_ALPHA_ROWS, QKV_ROWS, QUERY_GATE_ROWS, Z_ROWS
from sporelm.checkpoints.hf.gemma import NORMS_LESS_ONE, stored_less_one
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf.qwen2moe import QWEN_EXPERT_KEYS, with_mlp_only_layers
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    MLP,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import NegativeExp, Squeeze, TakeRows, Transpose
from sporelm.models.architectures.qwen3next import Qwen3Next, Qwen3NextConfig
from sporelm.models.config import ModelConfig

DELTA_NET: Final = f"{LAYER}linear_attn."
DELTA_NET_DEFAULTS: Final[Mapping[str, Any]] = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DELTA_NET_SUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "output_gate_type": ("swish", "silu"),
}
# Stored norms are one less, except that of the delta net. Queries and their gates are one tensor.
GATED_ATTENTION_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **NORMS_LESS_ONE,
    **stored_less_one(HEAD_NORM_TENSORS),
    **{
        f"layers.{{}}.attn_{name}.weight": StoredAs(f"{ATTENTION}q_proj.weight", TakeRows(rows))
        for name, rows in QUERY_GATE_ROWS.items()
    },
}


def delta_net_json(config: ModelConfig) -> dict[str, Any]:
    """Return values of config.json that no key covers."""
    assert isinstance(config, Qwen3NextConfig)
    layer_types = layer_types_json(config.layers, config.attention_layers)
    return {**layer_types, "partial_rotary_factor": config.rotary / config.head_dim}


@register
class Qwen3NextForCausalLM(HfSchema):
    """Qwen3-Next."""

    model_type = "qwen3_next"
    architecture = Qwen3Next
    keys = hf_keys(
        *DELTA_NET_HF_KEYS,
        ATTENTION_INTERVAL_KEY,
        *QWEN_EXPERT_KEYS,
        *hf_expert_keys(shared_ffn="shared_expert_intermediate_size"),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {
        **DELTA_NET_DEFAULTS,
        "num_key_value_heads": 2,
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    constants = {"experts.shared_gate": True, "experts.renormalize": True}
    supported = DELTA_NET_SUPPORTED
    tensors = {
        **GATED_ATTENTION_TENSORS,
        "layers.{}.delta_qkv.weight": StoredAs(f"{DELTA_NET}in_proj_qkvz.weight", TakeRows(QKV_ROWS)),
        "layers.{}.delta_z.weight": StoredAs(f"{DELTA_NET}in_proj_qkvz.weight", TakeRows(Z_ROWS)),
        **{
            f"layers.{{}}.delta_{name}.weight": StoredAs(f"{DELTA_NET}in_proj_ba.weight", TakeRows(rows))
            for name, rows in BETA_ALPHA_ROWS.items()
        },
        "layers.{}.delta_conv.weight": StoredAs(f"{DELTA_NET}conv1d.weight", Squeeze((1,), to_four=True), Transpose()),
        "layers.{}.delta.decay": StoredAs(f"{DELTA_NET}A_log", NegativeExp()),
        "layers.{}.delta_dt.bias": f"{DELTA_NET}dt_bias",
        "layers.{}.delta_norm.weight": f"{DELTA_NET}norm.weight",
        "layers.{}.delta_o.weight": f"{DELTA_NET}out_proj.weight",
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_expert."),
        "layers.{}.ffn_gate_inp_shexp.weight": f"{MLP}shared_expert_gate.weight",
    }
    ignored_tensors = ("mtp.*",)
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Qwen3NextConfig)
        config = with_optional_windows(with_delta_net_layers(config, values, is_gguf=False), values)
        return with_mlp_only_layers(config, values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return delta_net_json(config)
