"""Command-A+ and North-Mini-Code: Command-R7B with experts, and with dense layers in front that see all positions."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.experts import expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, NormKind, RMSNorm, layer_norm_without_bias, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.cohere import DEFAULTS, FIELDS
from sporelm.models.registry import architecture

STEP = 4
SCORES = {"softmax": "softmax_of_chosen", "sigmoid": "sigmoid"}  # words of config.json -> those of `ops.route`
PREFIX = "layers_before_the_pattern"  # ours: first_k_dense_replace, where config.json says it in this word
RMS = "attention.layer_norm_rms_epsilon"
FLAGS = (("attention_bias",) * 2, ("sliding_window", "window"), ("norm_topk_prob", "experts.renormalize"))


@dataclass(frozen=True)
class Cohere2MoeParts:
    """What some of its models have."""

    rms_eps: float | None  # its norms are by the root mean square, with this epsilon


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    kinds = values.get("mlp_layer_types")
    values = {**values, PREFIX: values.get("first_k_dense_replace")}
    if isinstance(kinds, list):
        values["first_k_dense_replace"] = next((n for n, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    scores, ffn = values.get("expert_selection_fn"), values.get("prefix_dense_intermediate_size")
    found = {"prefix_dense_intermediate_size": values.get("intermediate_size") if ffn is None else ffn}
    return {**values, **found, "expert_selection_fn": SCORES[scores] if scores in tuple(SCORES) else scores}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Layers without a window are not rotated, but for dense ones."""
    assert config.experts is not None
    window, full, dense = config.window, config.full_layers, range(config.experts.leading)
    if kind == HF:
        window = window_of(values, "sliding_window", 4096)
        step = values.integer("sliding_window_pattern", 1, MOST_LAYERS, STEP)
        prefix = range(values.integer(PREFIX, 0, config.layers, 0))  # what mlp_layer_types says does not count here
        rest = range(len(prefix) + step - 1, config.layers, step)
        full = full_layers_of(values, config.layers) if values.has("layer_types") else frozenset([*prefix, *rest])
        kinds = values.values.get("mlp_layer_types")
        if kinds is not None and kinds != ["dense"] * len(dense) + ["sparse"] * (config.layers - len(dense)):
            raise UnsupportedModel(f"{values.where}: mlp_layer_types is {shown(kinds)}; only first layers may be dense")
    if window is None:
        raise UnsupportedModel(f"{values.where}: layers without a window are not rotated, and no layer has one")
    config = replace(config, window=window, full_layers=full, nope_layers=full - {*dense})
    return replace(config, eps=config.own.rms_eps or config.eps)


def _words(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    scores = next(hf for hf, ours in SCORES.items() if ours == config.experts.scores)
    kinds = ["full_attention" if layer in config.full_layers else "sliding_attention" for layer in range(config.layers)]
    return {"expert_selection_fn": scores, "layer_types": kinds}


@architecture(
    Family(
        "cohere2moe",
        (
            HfClass(
                "Cohere2MoeForCausalLM",
                "cohere2_moe",
                DEFAULTS
                | {"head_dim": 128, "expert_selection_fn": "softmax", "norm_topk_prob": True}
                | {"num_experts": 8, "num_experts_per_tok": 2},
                FLAGS,
            ),
        ),
        fields(
            *FIELDS,
            Field("ffn", "feed_forward_length", "u32", "prefix_dense_intermediate_size"),
            Field("own.rms_eps", RMS, "f32", "rms_norm_eps", 1e-12, 1.0, OPTIONAL),
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="intermediate_size",
                shared="num_shared_experts",
                leading="first_k_dense_replace",
                renormalize="norm_topk_prob",
            ),
            *(each._replace(default="sigmoid") for each in expert_fields(scores="expert_selection_fn")),
        ),
        changed(COMMON, *expert_names(), *shared_names()),
        fixed={"parallel": True, "rope_style": "adjacent", "experts.averaged": True},
        only={
            "hidden_act": ("silu",),
            "shared_expert_combination_strategy": ("average",),
            "prefix_dense_sliding_window_pattern": (1,),
        },
        finish=_finished,
        full_layers=lambda layers: frozenset(range(0, layers, STEP)),
        reworded=_reworded,
        regrouped=lambda values: {"attention.layer_norm_epsilon": 1e-5, **values},
        tells_layers=True,
        words=_words,
        further_layers=True,
        own=Cohere2MoeParts,
    )
)
class Cohere2Moe(Decoder):
    """x + attention(norm(x)) + mixture(norm(x)), one norm for both (Cohere 2026)."""

    def __init__(self, config: ModelConfig) -> None:
        self.norms: NormKind = RMSNorm if config.own.rms_eps else layer_norm_without_bias
        super().__init__(config)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms, shared=True)
