"""Ling 1 (lite and plus): Llama with shared and routed experts; query, key and value in one tensor."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.experts import expert_fields, expert_names, shared_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.forms import qkv_names
from sporelm.weights.names import COMMON, Names, Table, changed

ATTENTION = "model.layers.{}.attention."


def bailing_names(gguf: str = "") -> Table:
    """Names of Ling's weights; `gguf` is that of query, key and value in GGUF files that hold them in one tensor."""
    return changed(
        COMMON,
        Names("embedding.weight", "token_embd.weight", "model.word_embeddings.weight"),
        *qkv_names(f"{ATTENTION}query_key_value", gguf=gguf, kinds=("weight",)),
        Names("layers.{}.attn_o.weight", "blk.{}.attn_output.weight", f"{ATTENTION}dense.weight"),
        *expert_names(),
        *shared_names(),
    )


@architecture(
    Family(
        "bailingmoe",
        (HfClass("BailingMoeForCausalLM", "bailing_moe", fields=(("norm_topk_prob", "experts.renormalize"),)),),
        fields(
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                scale="",
                renormalize="norm_topk_prob",
            )
        ),
        bailing_names(),
        fixed={"experts.epsilon": 1e-20},
        only={
            "hidden_act": ("silu",),
            "first_k_dense_replace": (0,),
            "multi_gate": (False,),
            "norm_head": (False,),
            "norm_softmax": (False,),
            "use_bias": (False,),
            "use_qkv_bias": (False,),
        },
        paired_rows=True,
    )
)
class BailingMoe(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (Ling team 2025)."""
