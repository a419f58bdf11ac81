"""Ling 1 (lite and plus): Llama with shared and routed experts; query, key and value in one tensor."""

from dataclasses import dataclass

from sporelm.checkpoints.experts import expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import qkv_names
from sporelm.checkpoints.tensor_names import COMMON, Kind, Names, Stored, Table, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

ATTENTION = "model.layers.{}.attention."


@dataclass(frozen=True)
class BailingParts:
    """What some of its models have."""

    unit_head: bool = False  # columns of what scores tokens are brought to length one; GGUF files hold them so


HEAD = Names(
    "output.weight",
    "output.weight",
    Stored("lm_head.weight", unit=lambda config: config.own.unit_head, unit_axis=0),
)


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


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if config.own.unit_head and config.tie_embeddings:
        raise UnsupportedModel(f"{values.where}: norm_head is true of an output that is the embedding: not supported")
    return config


@architecture(
    Family(
        "bailingmoe",
        (HfClass("BailingMoeForCausalLM", "bailing_moe", fields=(("norm_topk_prob", "experts.renormalize"),)),),
        fields(
            Field("own.unit_head", "", "bool", "norm_head", default=False),
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                scale="",
                renormalize="norm_topk_prob",
            ),
        ),
        changed(bailing_names(), HEAD),
        fixed={"experts.epsilon": 1e-20},
        only={
            "hidden_act": ("silu",),
            "first_k_dense_replace": (0,),
            "multi_gate": (False,),
            "norm_softmax": (False,),
            "use_bias": (False,),
            "use_qkv_bias": (False,),
        },
        finish=_finished,
        paired_rows=True,
        own=BailingParts,
    )
)
class BailingMoe(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (Ling team 2025)."""
