"""Hunyuan-A13B: Hunyuan's dense layer with experts beside its feed-forward block."""

from dataclasses import replace
from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.hunyuan_dense import HEAD_NORMS, rebased
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import MLP, expert_fields, expert_names, shared_names
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HF, Kind, Names, changed

LISTS = ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert")  # a number, or one for each layer
ROUTER = Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}gate.wg.weight")


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Lists of one number over and over as that number."""
    found = rebased(values)
    alike = {key: found[key] for key in LISTS if isinstance(found.get(key), list) and found[key]}
    return found | {key: each[0] for key, each in alike.items() if all(one == each[0] for one in each)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Experts, and the block that every token goes through, are as wide as the model's."""
    assert config.experts is not None
    if kind != HF:
        return config
    return replace(config, experts=replace(config.experts, shared_ffn=config.ffn))


@architecture(
    Family(
        "hunyuan-moe",
        (
            HfClass(
                "HunYuanMoEV1ForCausalLM",
                "hunyuan_v1_moe",
                {"rms_norm_eps": 1e-5},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            *expert_fields(count="num_experts", used="moe_topk", ffn="intermediate_size", shared_ffn=""),
            without=("window",),
        ),
        changed(COMMON, *HEAD_NORMS, *expert_names(), *shared_names(f"{MLP}shared_mlp."), ROUTER),
        fixed={"experts.renormalize": True},
        only={
            "hidden_act": ("silu",),
            "use_cla": (False,),
            "use_qk_norm": (True,),
            "use_mixed_mlp_moe": (True,),
            "num_shared_expert": (1,),
            "moe_layer_num_skipped": (0,),
        },
        finish=_finished,
        reworded=_reworded,
    )
)
class HunyuanMoe(Decoder):
    """The Llama layer with a mixture; queries and keys are normed once they are rotated (Tencent Hunyuan team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads", norms_last=True))
