"""What the config.json of DeepSeek V2 and V3, and of those with their layers, calls its numbers."""

from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import with_leading
from sporelm.checkpoints.family import HfClass
from sporelm.checkpoints.fields import shown
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig

V2, V3, GLM = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
YOUTU = "YoutuForCausalLM"  # no layer of which has experts
# What transformers takes where config.json is silent.
SHAPE = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}
GREEDY: dict[str, Any] = {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407}
GREEDY |= {"topk_method": "greedy"}
BIASED: dict[str, Any] = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
BIASED |= {"n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "norm_topk_prob": True}
BIASED |= {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "max_position_embeddings": 4096}
LITE = BIASED | {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64}
LITE |= {"moe_intermediate_size": 1536, "num_experts_per_tok": 4, "first_k_dense_replace": 1, "n_group": 1}
LITE |= {"topk_group": 1, "routed_scaling_factor": 1.8, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5}
DENSE: dict[str, Any] = {"n_routed_experts": 0, "tie_word_embeddings": True, "max_position_embeddings": 131072}
FLAGS = (("norm_topk_prob", "experts.renormalize"),)
CLASSES = (
    HfClass(V2, "deepseek_v2", {**SHAPE, **GREEDY}, FLAGS),
    HfClass(V3, "deepseek_v3", {**SHAPE, **BIASED}, FLAGS),
    HfClass(GLM, "glm4_moe_lite", {**SHAPE, **LITE}, FLAGS),
    HfClass(YOUTU, "youtu", {**SHAPE, **DENSE}),
)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Which layers are dense, as a list in GLM's; V2's are chosen from all groups unless it says so."""
    rotated, told = values.get("qk_rope_head_dim"), values.get("head_dim")
    if told is not None and told != rotated:  # by which transformers makes its angles
        raise UnsupportedModel(f"config.json: head_dim {shown(told)} is not supported; qk_rope_head_dim {rotated} is")
    found = latent.reworded(values)
    if values.get("topk_method") == "greedy":
        found |= {"n_group": 0, "topk_group": 0}
    return with_leading(found)


def chosen(config: ModelConfig) -> str:
    """The class that a GGUF file's configuration is one of."""
    if config.experts is None:
        return YOUTU
    return V3 if config.experts.scores == "sigmoid" else V2


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """More of GGUF metadata: what llama.cpp wants to hear of experts where there are none."""
    found = latent.said(config, "deepseek2", absorbed=True)
    if config.experts is not None:
        return found
    none = {"leading_dense_block_count": config.layers, "expert_feed_forward_length": config.ffn}
    none["expert_shared_count"] = 0
    return found | {f"deepseek2.{key}": ("u32", value) for key, value in none.items()}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    experts, found = config.experts, latent.words(config)
    if experts is None:
        return found
    grouped = experts.groups > 1 and experts.scores == "softmax"
    method = "noaux_tc" if experts.scores == "sigmoid" else "group_limited_greedy" if grouped else "greedy"
    return {**found, "topk_method": method, "num_nextn_predict_layers": 0}
