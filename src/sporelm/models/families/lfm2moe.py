"""LFM2 with experts, after the first layers."""

from sporelm.checkpoints.experts import choice_bias_name, expert_fields, expert_names, meaning
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.tensor_names import changed
from sporelm.models.families.layer_kinds import by_key_heads, key_heads
from sporelm.models.families.lfm2 import FIELDS, LAYER, NAMES, NUMBERS, ConvLayers, Lfm2, finished, words
from sporelm.models.registry import architecture

BLOCK = f"{LAYER}feed_forward."
EXPERTS = NUMBERS | {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "num_dense_layers": 2}
EXPERTS |= {"norm_topk_prob": True, "use_expert_bias": True}
FLAGS = (("norm_topk_prob", "experts.renormalize"), ("use_expert_bias", "experts.choice_bias"))


@architecture(
    Family(
        "lfm2moe",
        (HfClass("Lfm2MoeForCausalLM", "lfm2_moe", EXPERTS, FLAGS),),
        fields(
            *FIELDS,
            *expert_fields(
                ("renormalize",),
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                leading="num_dense_layers",
                renormalize="norm_topk_prob",
                scale="routed_scaling_factor",
                choice_bias="use_expert_bias",
                scores="",
            ),
        ),
        changed(NAMES, *expert_names(BLOCK, ("w1", "w3", "w2")), choice_bias_name(f"{BLOCK}expert_bias")),
        fixed={"experts.scores": "sigmoid", "experts.renormalize": True, "experts.epsilon": 1e-6},
        only={"conv_bias": (False,)},
        finish=finished,
        words=lambda config: {"layer_types": words(config)["layer_types"]},
        unsaid=meaning(renormalize=True, dense=True),
        said=lambda config: key_heads(config, "lfm2moe", config.own.attention),
        regrouped=by_key_heads,
        reworded=lambda values: {
            **values,
            "tie_word_embeddings": values.get("tie_embedding", values.get("tie_word_embeddings")),
        },
        own=ConvLayers,
    )
)
class Lfm2Moe(Lfm2):
    """LFM2's layer with a mixture in place of its feed-forward block (Liquid AI 2025)."""
