"""DeepSeek MoE (V1): Llama with fine-grained experts and shared ones, after a first dense layer."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.experts import expert_fields, expert_names, meaning, shared_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.names import COMMON, changed


@architecture(
    Family(
        "deepseek",
        (
            HfClass(
                "DeepseekForCausalLM",
                "deepseek",
                {"n_shared_experts": 0, "first_k_dense_replace": 0},
                (("norm_topk_prob", "experts.renormalize"),),
            ),
        ),
        fields(
            *expert_fields(
                ("renormalize",),
                count="n_routed_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="n_shared_experts",
                leading="first_k_dense_replace",
                scale="",
                renormalize="norm_topk_prob",
            )
        ),
        changed(COMMON, *expert_names(), *shared_names()),
        fixed={"experts.epsilon": 1e-20},
        only={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "moe_layer_freq": (1,),
            "scoring_func": ("softmax",),
        },
        unsaid=meaning(renormalize=False, dense=True),
        paired_rows=True,
    )
)
class Deepseek(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (Dai et al. 2024)."""
