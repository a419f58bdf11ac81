"""Hugging Face folders of Command-A+ and North-Mini-Code."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import SCORE_FUNCTIONS, hf_expert_keys
from sporelm.checkpoints.gguf.cohere2moe import (
    COHERE2_MOE_CONSTANTS,
    DEFAULT_SCORES,
    MIN_RMS_EPS,
    WINDOW_STEP,
    with_windows_and_eps,
)
from sporelm.checkpoints.hf.cohere import COHERE_DEFAULTS, COHERE_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, expert_tensors, shared_expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer, list_attention_types, read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.cohere2moe import Cohere2Moe
from sporelm.models.config import MAX_LAYERS, ModelConfig

# `expert_selection_fn` -> scores of `ops.route`.
SCORES_BY_NAME: Final = {"softmax": "softmax_of_chosen", "sigmoid": "sigmoid"}
NUM_DENSE_LAYERS: Final = "first_k_dense_replace"
DENSE_WIDTH: Final = "prefix_dense_intermediate_size"


def with_usual_keys(values: ConfigValues) -> ConfigValues:
    """Return the values with the number of leading dense layers of `mlp_layer_types`, the width of dense layers, and
    the score function under the name of `ops.route`."""
    found: dict[str, Any] = {}
    kinds = values.get("mlp_layer_types")
    if isinstance(kinds, list):
        found[NUM_DENSE_LAYERS] = next((n for n, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if values.get(DENSE_WIDTH) is None:
        found[DENSE_WIDTH] = values.get("intermediate_size")
    scores = values.get("expert_selection_fn")
    if scores in tuple(SCORES_BY_NAME):
        found["expert_selection_fn"] = SCORES_BY_NAME[scores]
    return values.with_changes(found)


def read_full_layers_of_step(values: ConfigValues, layers: int) -> frozenset[int]:
    """Return the layers without a window: those of `layer_types`, else the dense layers and each nth layer after them.
    Here `first_k_dense_replace` is the number of dense layers, regardless of `mlp_layer_types`."""
    step = values.integer("sliding_window_pattern", 1, MAX_LAYERS, WINDOW_STEP)
    num_dense = values.integer(NUM_DENSE_LAYERS, 0, layers, 0)
    if values.has("layer_types"):
        return read_full_layers(values, layers)
    return frozenset([*range(num_dense), *range(num_dense + step - 1, layers, step)])


@register
class Cohere2MoeForCausalLM(HfSchema):
    """Command-A+."""

    model_type = "cohere2_moe"
    architecture = Cohere2Moe
    keys = hf_keys(
        *COHERE_KEYS,
        Key("ffn", DENSE_WIDTH, "u32"),
        Key("rms_eps", "rms_norm_eps", "f32", MIN_RMS_EPS, 1.0, OPTIONAL),
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="intermediate_size",
            shared="num_shared_experts",
            leading=NUM_DENSE_LAYERS,
            renormalize="norm_topk_prob",
        ),
        *(each._replace(default=DEFAULT_SCORES) for each in hf_expert_keys(scores="expert_selection_fn")),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "sliding_window": "window",
        "norm_topk_prob": "experts.renormalize",
    }
    defaults = {
        **COHERE_DEFAULTS,
        "head_dim": 128,
        "expert_selection_fn": "softmax",
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    }
    constants = COHERE2_MOE_CONSTANTS
    supported = {
        "hidden_act": ("silu",),
        "shared_expert_combination_strategy": ("average",),
        "prefix_dense_sliding_window_pattern": (1,),
    }
    tensors = DECODER_TENSORS | expert_tensors() | shared_expert_tensors()
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP, first=0)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(with_usual_keys(values), dtype)
        assert config.experts is not None
        window = read_window(values, "sliding_window", 4096)
        full_layers = read_full_layers_of_step(values, config.layers)
        num_dense = config.experts.leading
        kinds = values.get("mlp_layer_types")
        if kinds is not None and kinds != ["dense"] * num_dense + ["sparse"] * (config.layers - num_dense):
            what = f"mlp_layer_types is {format_value(kinds)}; only leading layers may be dense"
            raise UnsupportedModel(f"{values.where}: {what}")
        return with_windows_and_eps(config, window, full_layers, values.where)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        experts = config.experts
        assert experts is not None
        names = {scores: name for name, scores in SCORES_BY_NAME.items()}
        if experts.scores not in names:
            functions = ", ".join(f"{scores} ({SCORE_FUNCTIONS.index(scores)})" for scores in names)
            value = f"{experts.scores} ({SCORE_FUNCTIONS.index(experts.scores)})"
            raise UnsupportedModel(
                f"expert_gating_func: folders of {self.class_name} cannot hold it (got {value}; allowed {functions})."
                " Use the GGUF file as it is."
            )
        return {
            "expert_selection_fn": names[experts.scores],
            "layer_types": list_attention_types(config),
        }
