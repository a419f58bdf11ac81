"""Hugging Face folders of LongCat-Flash."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.longcat_flash import LONGCAT_CONSTANTS, half_tensors, with_scaled_queries
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    EMBEDDING_TENSORS,
    LAYER,
    MLP,
    choice_bias_tensors,
    expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.models.architectures.longcat_flash import LongcatFlash
from sporelm.models.config import ModelConfig
from sporelm.ops.expert_routing import MAX_EXPERTS

# Keys of transformers -> published keys.
PUBLISHED_KEYS: Final = {
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "num_experts_per_tok": "moe_topk",
    "num_local_experts": "n_routed_experts",
}


def _hf_half_tensors(number: int) -> TensorTable:
    """Return the weights of one half of a layer. The layer's modules are lists of two."""
    found: TensorTable = {}
    for parameter, row in half_tensors(DECODER_TENSORS | LATENT_HF_TENSORS, number).items():
        stored = alternatives(row)[0]
        block, _, part = stored.name.removeprefix(LAYER).partition(".")
        name = f"{LAYER}{'mlps' if block == 'mlp' else block}.{number}.{part}"
        found[parameter] = StoredAs(name, *stored.transforms)
    return found


@register
class LongcatFlashForCausalLM(LatentHfSchema):
    """LongCat-Flash. MTP layers are not read; nor are the matrices that transformers writes for zero-computation
    experts."""

    model_type = "longcat_flash"
    architecture = LongcatFlash
    keys = hf_keys(
        *LATENT_HF_KEYS,
        Key("layers", "num_layers", "u32"),
        Key("ffn", "ffn_hidden_size", "u32"),
        Key("num_zero_experts", "zero_expert_num", "u32", 0, MAX_EXPERTS, 0),
        *hf_expert_keys(
            count="n_routed_experts", used="moe_topk", ffn="expert_ffn_hidden_size", scale="routed_scaling_factor"
        ),
    )
    defaults = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 512,
        "moe_topk": 12,
        "expert_ffn_hidden_size": 2048,
        "zero_expert_num": 256,
        "routed_scaling_factor": 6.0,
        "ffn_hidden_size": 12288,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e7,
        "max_position_embeddings": 131072,
    }
    constants = LONGCAT_CONSTANTS
    supported = {
        "hidden_act": ("silu",),
        "zero_expert_type": ("identity",),
        "attention_method": ("MLA",),
        "mla_scale_q_lora": (True,),
        "mla_scale_kv_lora": (True,),
        "attention_bias": (False,),
        "router_bias": (False,),
        "norm_topk_prob": (False,),
    }
    tensors = {
        **EMBEDDING_TENSORS,
        **_hf_half_tensors(0),
        **_hf_half_tensors(1),
        **expert_tensors(),
        "layers.{}.ffn_gate_inp.weight": f"{MLP}router.classifier.weight",
        **choice_bias_tensors(f"{MLP}router.e_score_correction_bias"),
    }
    ignored_tensors = ("model.mtp.*", f"{MLP}experts.*")

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        found = {makers: values.get(name) for name, makers in PUBLISHED_KEYS.items() if name in values.values}
        halves = values.get("num_hidden_layers")
        if values.get("num_layers") is None and type(halves) is int:
            found["num_layers"] = halves // 2
        return with_scaled_queries(super().config_from_json(values.with_changes(found), dtype))
