"""Granite 3 with experts: its scales, and at times a block that every token goes through."""

from sporelm.checkpoints.experts import expert_fields, fused_names
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, changed
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.granite import NUMBERS, scored
from sporelm.models.registry import architecture

BLOCK = "model.layers.{}.block_sparse_moe."
SHARED = "model.layers.{}.shared_mlp."
NAMES = changed(
    COMMON,
    *fused_names(
        f"{BLOCK}router.layer.weight",
        f"{BLOCK}input_linear.weight",
        f"{BLOCK}output_linear.weight",
        f"{SHARED}input_linear.weight",
        f"{SHARED}output_linear.weight",
    ),
)
DEFAULTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
FLAGS = (("attention_bias", "attention_bias"),)


def _class(config: ModelConfig) -> str:
    assert config.experts is not None
    return "GraniteMoeSharedForCausalLM" if config.experts.shared_ffn else "GraniteMoeForCausalLM"


@architecture(
    Family(
        "granitemoe",
        (
            HfClass("GraniteMoeForCausalLM", "granitemoe", DEFAULTS, FLAGS),
            HfClass("GraniteMoeSharedForCausalLM", "granitemoeshared", DEFAULTS, FLAGS),
        ),
        fields(
            *NUMBERS,
            *expert_fields(
                count="num_local_experts", used="num_experts_per_tok", shared_ffn="shared_intermediate_size"
            ),
        ),
        NAMES,
        fixed={"experts.scores": "softmax_of_chosen"},
        finish=scored,
        choose=_class,
        paired_rows=True,
    )
)
class GraniteMoe(Decoder):
    """The Llama layer, scaled, with a mixture in place of its feed-forward block (IBM 2024)."""
