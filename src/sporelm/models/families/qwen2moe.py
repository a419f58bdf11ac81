"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2 with experts, and one that every token goes through by a gate of its own."""

from dataclasses import replace

from sporelm.checkpoints.experts import MLP, expert_fields, expert_names, meaning, shared_names
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind, Names, Stored, changed
from sporelm.errors import ModelFileError
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.qwen2 import windowed
from sporelm.models.registry import architecture

EXPERTS = expert_fields(
    ("renormalize", "step"),
    count="num_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    renormalize="norm_topk_prob",
    step="decoder_sparse_step",
)
GATE = Names(
    "layers.{}.ffn_gate_inp_shexp.weight",
    Stored("blk.{}.ffn_gate_inp_shexp.weight", flat=True),
    f"{MLP}shared_expert_gate.weight",
)


def mlp_only(values: Fields, usual: tuple[int, ...] = ()) -> frozenset[int]:
    """The layers that `mlp_only_layers` of a config.json names; the usual ones where it is absent."""
    told = values.values.get("mlp_only_layers")
    listed = list(usual) if told is None else told
    if not isinstance(listed, list) or any(type(layer) is not int or layer < 0 for layer in listed):
        raise ModelFileError(f"{values.where}: mlp_only_layers is {shown(listed)}; it must be numbers of layers")
    return frozenset(listed)


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """`mlp_only_layers` of config.json have no experts."""
    config = windowed(config, values, kind)
    assert config.experts is not None
    return replace(config, experts=replace(config.experts, dense=mlp_only(values) if kind == HF else frozenset()))


@architecture(
    Family(
        "qwen2moe",
        (
            HfClass(
                "Qwen2MoeForCausalLM",
                "qwen2_moe",
                {"num_key_value_heads": 16, "max_position_embeddings": 32768}
                | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
                | {"shared_expert_intermediate_size": 5632},
                (("norm_topk_prob", "experts.renormalize"),),
            ),
        ),
        fields(*EXPERTS, *expert_fields(shared_ffn="shared_expert_intermediate_size")),
        changed(COMMON, *expert_names(), *shared_names(f"{MLP}shared_expert."), GATE),
        fixed={"attention_bias": True, "experts.shared_gate": True},
        only={"hidden_act": ("silu",), "qkv_bias": (True,)},
        finish=finished,
        unsaid=meaning(renormalize=False),
        windowless=True,
    )
)
class Qwen2Moe(Decoder):
    """Qwen2's layer with a mixture in place of its feed-forward block (Yang et al. 2024)."""
