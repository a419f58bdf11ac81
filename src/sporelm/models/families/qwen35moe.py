"""Qwen3.5 with experts, its text model."""

from sporelm.checkpoints.beside_vision import text_names
from sporelm.checkpoints.experts import FUSED_EXPERTS, MLP, expert_fields, expert_names, fused_names, shared_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import GGUF, HF, changed
from sporelm.models.families.delta_fields import DEFAULTS, DELTA_FIELDS, finished
from sporelm.models.families.qwen2moe import GATE
from sporelm.models.families.qwen35 import NAMES, OPTIONS, Qwen35, told
from sporelm.models.registry import architecture

ALL = changed(
    NAMES,
    *fused_names(f"{MLP}gate.weight", f"{MLP}experts.gate_up_proj", f"{MLP}experts.down_proj"),
    *shared_names(f"{MLP}shared_expert."),
    GATE,
)
APART = expert_names()[1:]  # a tensor for each expert, as transformers 5 writes them
NUMBERS = {**DEFAULTS, "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8}
NUMBERS |= {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}


@architecture(
    Family(
        "qwen35moe",
        (
            HfClass("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", NUMBERS),
            HfClass("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", NUMBERS),
        ),
        fields(
            *DELTA_FIELDS,
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared_ffn="shared_expert_intermediate_size",
            ),
            Field("ffn", "feed_forward_length", "u32", "moe_intermediate_size"),
        ),
        ALL,
        others={HF: (*text_names(ALL), *APART, *text_names(APART)), GGUF: FUSED_EXPERTS},
        fixed={"own.order": "all", "experts.shared_gate": True, "experts.renormalize": True},
        # llama.cpp's converter writes no width of a block that no layer has.
        regrouped=lambda values: {"feed_forward_length": values.get("expert_feed_forward_length"), **values},
        finish=finished,
        said=told("qwen35moe"),
        **OPTIONS,
    )
)
class Qwen35Moe(Qwen35):
    """Qwen3.5's layer with a mixture and a shared expert in place of its feed-forward block."""
