"""What files call the numbers and the weights of mixtures of experts; a family takes those that it has.

GGUF keys and tensors: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of transformers.
"""

from collections.abc import Callable
from typing import Any, Final

from sporelm.checkpoints.family import Field
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.forms import expert_rows, shared_rows, stacked
from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_LAYERS, MAX_WIDTH, ModelConfig
from sporelm.ops.expert_routing import MAX_EXPERTS

# As llama.cpp numbers its gating functions: 0 is that of a file that does not say.
SCORES = ("", "softmax", "sigmoid", "softmax_of_chosen")
CHOICE_BIAS: Final = "layers.{}.ffn_choice.bias"
MAX_SCALE = 1e6
MLP: Final = "model.layers.{}.mlp."

_FIELDS = {
    "count": Field("experts.count", "expert_count", "u32", "", 1, MAX_EXPERTS),
    "used": Field("experts.used", "expert_used_count", "u32", "", 1, MAX_EXPERTS),
    "ffn": Field("experts.ffn", "expert_feed_forward_length", "u32", "", 1, MAX_WIDTH),
    "shared": Field("experts.shared", "expert_shared_count", "u32", "", 0, MAX_EXPERTS, 0),
    "shared_ffn": Field("experts.shared_ffn", "expert_shared_feed_forward_length", "u32", "", 0, MAX_WIDTH, 0),
    "leading": Field("experts.leading", "leading_dense_block_count", "u32", "", 0, MAX_LAYERS, 0),
    "step": Field("experts.step", "interleave_moe_layer_step", "u32", "", 1, MAX_LAYERS, 1),
    "groups": Field("experts.groups", "expert_group_count", "u32", "", 0, MAX_EXPERTS, 0),
    "top_groups": Field("experts.top_groups", "expert_group_used_count", "u32", "", 0, MAX_EXPERTS, 0),
    "scale": Field("experts.scale", "expert_weights_scale", "f32", "", 0.0, MAX_SCALE, 1.0),
    "renormalize": Field("experts.renormalize", "expert_weights_norm", "bool", "", default=False),
    "scores": Field("experts.scores", "expert_gating_func", "u32", "", default="softmax", words=SCORES),
    "choice_bias": Field("experts.choice_bias", "", "bool", "", weight=CHOICE_BIAS),
}


def expert_fields(silent: tuple[str, ...] = (), *, optional: bool = False, **keys: str) -> tuple[Field, ...]:
    """Attributes of `Experts` that a family's files say, with their keys in config.json; "" where that has none.

    silent    those of which its GGUF files say nothing
    optional  not all of its models have experts
    """
    named = tuple(_FIELDS[name]._replace(hf=key) for name, key in keys.items())
    found = not_in_all(named) if optional else named
    return tuple(each._replace(gguf="") if each.ours.partition(".")[2] in silent else each for each in found)


def not_in_all(found: tuple[Field, ...]) -> tuple[Field, ...]:
    """Fields of experts that not all of a family's models have."""
    return tuple(each._replace(low=0, default=0) if each.default is None else each for each in found)


# DeepSeek V3's mixture, which others have taken over: its words in config.json, and what they do not say.
V3_FIELDS = expert_fields(
    count="n_routed_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    shared="n_shared_experts",
    leading="first_k_dense_replace",
    scale="routed_scaling_factor",
    renormalize="norm_topk_prob",
    groups="n_group",
    top_groups="topk_group",
)
V3_CHOICE = {
    "experts.scores": "sigmoid",
    "experts.choice_bias": True,
    "experts.group_score": "sum_of_two",
    "experts.epsilon": 1e-20,
}


def expert_names(block: str = MLP, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Table:
    """Names of the router and of the experts' matrices, each of which is a tensor of its own in folders."""
    return (
        Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{block}gate.weight"),
        *(
            Names(
                f"layers.{{}}.ffn_{part}_exps.weight",
                f"blk.{{}}.ffn_{part}_exps.weight",
                Stored(f"{block}experts.{{e}}.{hf}.weight", each=True),
            )
            for part, hf in zip(("gate", "up", "down"), parts, strict=True)
        ),
    )


def fused_parts(tensor: str) -> Table:
    """Names of gates and up parts of GGUF files that hold both in one tensor [experts, both, in]."""
    return tuple(
        Names(
            f"layers.{{}}.ffn_{part}_exps.weight",
            Stored(tensor, rows=stacked(number, expert_rows, expert_rows), inner=True),
            f"layers.{{}}.ffn_{part}_exps.weight",
        )
        for number, part in enumerate(("gate", "up"))
    )


def fused_names(router: str, gate_up: str, down: str, shared_gate_up: str = "", shared_down: str = "") -> Table:
    """Names of experts whose gates and up parts folders hold in one tensor [experts, both, in], one after the other;
    and of the block that every token goes through, if it has names."""
    both = {part: stacked(number, expert_rows, expert_rows) for number, part in enumerate(("gate", "up"))}
    shared = {part: stacked(number, shared_rows, shared_rows) for number, part in enumerate(("gate", "up"))}
    found = [
        Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", router),
        Names("layers.{}.ffn_down_exps.weight", "blk.{}.ffn_down_exps.weight", down),
        Names("layers.{}.ffn_down_shexp.weight", "blk.{}.ffn_down_shexp.weight", shared_down),
    ]
    for part in ("gate", "up"):
        for end, hf in (
            ("exps", Stored(gate_up, rows=both[part], inner=True)),
            ("shexp", Stored(shared_gate_up, rows=shared[part])),
        ):
            found.append(Names(f"layers.{{}}.ffn_{part}_{end}.weight", f"blk.{{}}.ffn_{part}_{end}.weight", hf))
    return tuple(found)


# Gates and up parts in one tensor, which llama.cpp's converter writes if asked to.
FUSED_EXPERTS = fused_parts("blk.{}.ffn_gate_up_exps.weight")

# A tensor for each expert: GGUF files of before April 2024.
SINGLE_EXPERTS = tuple(
    Names(ours, Stored(f"blk.{{}}.ffn_{part}.{{e}}.weight", each=True), ours)
    for part, ours in ((part, f"layers.{{}}.ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
)


def shared_names(block: str = f"{MLP}shared_experts.") -> Table:
    """Names of the expert that every token goes through."""
    return tuple(
        Names(f"layers.{{}}.ffn_{part}_shexp.weight", f"blk.{{}}.ffn_{part}_shexp.weight", f"{block}{part}_proj.weight")
        for part in ("gate", "up", "down")
    )


def choice_bias_name(hf: str | Stored = f"{MLP}gate.e_score_correction_bias") -> Names:
    """Name of the bias that is added to scores when experts are chosen."""
    return Names(CHOICE_BIAS, "blk.{}.exp_probs_b.bias", hf)


def with_leading(values: dict[str, Any]) -> dict[str, Any]:
    """`mlp_layer_types` of a config.json, dense ones and then sparse ones, as the number of the dense ones. Raises
    UnsupportedModel for another order."""
    kinds = values.get("mlp_layer_types")
    if kinds is None:
        return values
    if not isinstance(kinds, list) or kinds != sorted(kinds, key=str) or not {*map(str, kinds)} <= {"dense", "sparse"}:
        raise UnsupportedModel("mlp_layer_types must be dense ones, then sparse ones")
    return values | {"first_k_dense_replace": kinds.count("dense")}


def dense_layers(values: Fields, layers: int, usual: frozenset[int]) -> frozenset[int]:
    """The layers that `mlp_layer_types` of a config.json says are dense; the usual ones where it is absent."""
    kinds = values.values.get("mlp_layer_types")
    if kinds is None:
        return usual
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in ("dense", "sparse") for kind in kinds):
        what = f"mlp_layer_types is {shown(kinds)}"
        raise UnsupportedModel(f"{values.where}: {what}; it must say dense or sparse of each of the {layers} layers")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")


def meaning(*, renormalize: bool, dense: bool = False) -> Callable[[ModelConfig], str]:
    """`Family.unsaid` where GGUF files always mean weights that are renormalized or not, and experts in every layer
    unless they can say that some are `dense`."""

    def unsaid(config: ModelConfig) -> str:
        experts = config.experts
        assert experts is not None
        if not dense and not all(experts.at(layer) for layer in range(config.layers)):
            return "some of its layers have no experts"
        if experts.renormalize != renormalize:
            return f"the weights of its experts are {'not ' if renormalize else ''}renormalized"
        return ""

    return unsaid
