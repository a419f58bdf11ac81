"""Qwen3-VL with experts, its text model."""

from dataclasses import replace

from sporelm.checkpoints.beside_vision import inner_names, text_names
from sporelm.checkpoints.experts import FUSED_EXPERTS, MLP, expert_fields, fused_names, meaning
from sporelm.checkpoints.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import expert_rows
from sporelm.checkpoints.tensor_names import COMMON, GGUF, HEAD_NORMS, HF, Kind, Table, changed, form_in
from sporelm.models.config import ModelConfig
from sporelm.models.families.qwen2moe import finished
from sporelm.models.families.qwen2vl import reworded, told
from sporelm.models.families.qwen3moe import Qwen3Moe, counted
from sporelm.models.families.qwen3vl import DEEPSTACK, NUMBERS, SEEING, fed
from sporelm.models.registry import architecture

EXPERTS = expert_fields(
    ("step",),
    count="num_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    step="decoder_sparse_step",
)


def _experts() -> Table:
    """Folders hold [experts, in, out] as published, [experts, out, in] as transformers 5 writes it."""
    found = []
    for names in fused_names(f"{MLP}gate.weight", f"{MLP}experts.gate_up_proj", f"{MLP}experts.down_proj"):
        form = form_in(names, HF)
        if "_exps." in names.ours:
            last = expert_rows if "_down_" in names.ours else lambda config: config.width
            form = replace(form, inner=True, transposed=True, unturned=last)
        found += [names._replace(hf=form)] if form.name else []
    return tuple(found)


NAMES = changed(COMMON, *HEAD_NORMS, *_experts())


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return fed(finished(config, values, kind), values, kind)


@architecture(
    Family(
        "qwen3vlmoe",
        (
            HfClass(
                "Qwen3VLMoeForConditionalGeneration",
                "qwen3_vl_moe",
                {"num_key_value_heads": 16, "tie_word_embeddings": True, "num_experts": 60, "num_experts_per_tok": 4}
                | {"moe_intermediate_size": 1408, **NUMBERS},
                (("attention_bias", "attention_bias"),),
                inner="text_config",
            ),
        ),
        fields(*EXPERTS, *ATTENTION_BIAS, DEEPSTACK),
        inner_names(NAMES),
        others={HF: text_names(NAMES), GGUF: FUSED_EXPERTS},
        fixed={"experts.renormalize": True},
        finish=_finished,
        unsaid=meaning(renormalize=True),
        said=told("qwen3vlmoe"),
        **SEEING | {"reworded": lambda values: counted(reworded(values))},
    )
)
class Qwen3VLMoe(Qwen3Moe):
    """Qwen3-VL's layer with a mixture in place of its feed-forward block (Qwen team 2025)."""
