"""Hugging Face folders of Nomic BERT, and of its mixture of experts, which transformers lacks."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.encoder_keys import HF_LAYER_NORM_EPS, HF_TOKEN_TYPES
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.nomic_bert import EXPERTS_BIAS, NOMIC_CONSTANTS, STEP_KEY, with_experts_by_step
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import PRETRAINING_HEADS
from sporelm.checkpoints.hf_tensors import fused_qkv_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import SplitHeads, Transpose
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.nomic_bert import UNGATED, NomicBert
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

LAYER: Final = "encoder.layers.{}."
EXPERTS: Final = f"{LAYER}mlp.experts."
EXPERTS_BIAS_KEY: Final = "moe_experts_bias"  # false in folders converted from GGUF files without the tensor
# The authors' keys -> keys of transformers.
AUTHORS_KEYS: Final = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
BIAS_KEYS: Final = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
_NAMES: Final = {
    "embedding_norm": "emb_ln",
    "layers.{}.attn_o": f"{LAYER}attn.out_proj",
    "layers.{}.attn_norm": f"{LAYER}norm1",
    "layers.{}.ffn_up": f"{LAYER}mlp.fc11",
    "layers.{}.ffn_gate": f"{LAYER}mlp.fc12",
    "layers.{}.ffn_down": f"{LAYER}mlp.fc2",
    f"layers.{{}}.ffn_up{UNGATED}": f"{LAYER}mlp.fc1",
    f"layers.{{}}.ffn_down{UNGATED}": f"{LAYER}mlp.fc2",
    "layers.{}.ffn_gate_inp": f"{LAYER}mlp.router.layer",
    "layers.{}.ffn_norm": f"{LAYER}norm2",
}
# The experts' matrices are stacked by rows; both are [ffn, width].
NOMIC_TENSORS: Final[TensorTable] = {
    "embedding.weight": "embeddings.word_embeddings.weight",
    "types.weight": "embeddings.token_type_embeddings.weight",
    **fused_qkv_tensors(f"{LAYER}attn.Wqkv"),
    **{f"{name}.{part}": f"{stored}.{part}" for name, stored in _NAMES.items() for part in PARTS},
    EXPERTS_BIAS: f"{EXPERTS}bias",
    "layers.{}.ffn_up_exps.weight": StoredAs(f"{EXPERTS}mlp.w1", SplitHeads()),
    "layers.{}.ffn_down_exps.weight": StoredAs(f"{EXPERTS}mlp.w2", SplitHeads(), Transpose("dequantize")),
}


def with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return the values under transformers' keys. Raises UnsupportedModel unless a mixture has biases and GELU, and any
    other model SiLU and no biases."""
    found = dict(values.values)
    if "n_embd" in found:
        found |= {key: found[old] for old, key in AUTHORS_KEYS.items() if old in found}
        # Beyond the trained positions, the authors scale the rotary base by the text's length.
        trained = values.get("max_trained_positions")
        found["max_position_embeddings"] = values.get("n_positions", 2048) if trained is None else trained
        activation = values.get("activation_function")
        found["hidden_act"] = {"swiglu": "silu"}.get(str(activation), activation)
    has_experts = bool(values.get("moe_every_n_layers"))
    expected = {**dict.fromkeys(BIAS_KEYS, has_experts), "hidden_act": "gelu" if has_experts else "silu"}
    given = {key: values.get(key, has_experts) for key in BIAS_KEYS} | {"hidden_act": found.get("hidden_act", "silu")}
    for key, value in given.items():
        if value != expected[key]:
            kind = "with experts" if has_experts else "without experts"
            raise UnsupportedModel(
                f"{values.where}: {key} {format_value(value)} is not supported {kind}; {expected[key]} is"
            )
    return values.with_values(found)


@register
class NomicBertModel(EncoderHfSchema):
    """Nomic BERT."""

    model_type = "nomic_bert"
    architecture = NomicBert
    keys = hf_keys(
        HF_LAYER_NORM_EPS,
        HF_TOKEN_TYPES,
        *hf_expert_keys(optional=True, count="num_experts", used="moe_top_k"),
        Key("experts.added", EXPERTS_BIAS_KEY, "bool", default=True),
        STEP_KEY,
        Key("head_dim", "head_dim", "u32"),
        without=("kv_heads",),
    )
    defaults = {
        "max_position_embeddings": 2048,
        "vocab_size": 30528,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "rope_theta": 1000.0,
    }
    constants = NOMIC_CONSTANTS
    supported = {
        **dict.fromkeys(("prenorm", "causal", "moe_normalize_expert_weights", "expert_choice_router"), (False,)),
        **dict.fromkeys(("rotary_emb_interleaved", "use_rms_norm", "parallel_block"), (False,)),
        "rotary_emb_fraction": (1.0,),
        "num_shared_experts": (0,),
        "ffn_div": (1,),
    }
    tensors = NOMIC_TENSORS
    optional_prefixes = ("nomic_bert.", "bert.")
    ignored_tensors = PRETRAINING_HEADS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        values = with_transformers_keys(values)
        return with_experts_by_step(super().config_from_json(values, dtype), values.where)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        """Return the activation function; for a mixture, the authors' keys."""
        if config.experts is None:
            return {"hidden_act": "silu"}
        numbers = (config.width, config.ffn, config.layers, config.heads, config.eps, config.rope_theta)
        return {
            **dict(zip(AUTHORS_KEYS, numbers, strict=True)),
            "n_positions": config.context_length,
            "max_trained_positions": config.context_length,
            **dict.fromkeys(BIAS_KEYS, True),
            "activation_function": "gelu",
            "type_vocab_size": as_encoder_config(config).token_types,
            EXPERTS_BIAS_KEY: config.experts.added,
        }


@register
class NomicBertForMaskedLM(NomicBertModel):
    """Nomic BERT with its pretraining head."""


@register
class NomicBertForPreTraining(NomicBertModel):
    """Nomic BERT with its pretraining heads."""
