"""Hugging Face folders of Hunyuan-A13B."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf.hunyuan_dense import HUNYUAN_HEAD_NORM_TENSORS, with_ntk_theta
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP, expert_tensors, shared_expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hunyuan import Hunyuan
from sporelm.models.config import ModelConfig

PER_LAYER_KEYS: Final = ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert")


def with_single_numbers(values: ConfigValues) -> ConfigValues:
    """Return the values with one number in place of a list of equal numbers."""
    lists = {key: each for key in PER_LAYER_KEYS if isinstance(each := values.get(key), list) and each}
    return values.with_changes({key: each[0] for key, each in lists.items() if all(one == each[0] for one in each)})


@register
class HunYuanMoEV1ForCausalLM(HfSchema):
    """Hunyuan with a mixture of experts of the width of the model's feed-forward block."""

    model_type = "hunyuan_v1_moe"
    architecture = Hunyuan
    keys = hf_keys(*HF_ATTENTION_BIAS, *hf_expert_keys(count="num_experts", used="moe_topk", ffn="intermediate_size"))
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"rms_norm_eps": 1e-5}
    constants = {"experts.renormalize": True}
    supported = {
        "hidden_act": ("silu",),
        "use_cla": (False,),
        "use_qk_norm": (True,),
        "use_mixed_mlp_moe": (True,),
        "num_shared_expert": (1,),
        "moe_layer_num_skipped": (0,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HUNYUAN_HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_mlp."),
        "layers.{}.ffn_gate_inp.weight": f"{MLP}gate.wg.weight",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(with_single_numbers(with_ntk_theta(values)), dtype)
        assert config.experts is not None
        return replace(config, experts=replace(config.experts, shared_ffn=config.ffn))
