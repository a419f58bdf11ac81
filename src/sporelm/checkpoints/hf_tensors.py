"""Tensors of Hugging Face folders that schemas share, by parameter. Names: the state dicts of transformers' classes."""

from collections.abc import Mapping, Sequence
from typing import Final

from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS, PARTS
from sporelm.checkpoints.row_numbers import (
    EXPERT_GATE_UP_ROWS,
    GATE_UP_ROWS,
    QKV_ROWS,
    SHARED_EXPERT_GATE_UP_ROWS,
    RowNumbers,
)
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import Stack, TakeRows

LAYER: Final = "model.layers.{}."
ATTENTION: Final = f"{LAYER}self_attn."
MLP: Final = f"{LAYER}mlp."

EMBEDDING_TENSORS: Final[TensorTable] = {
    "embedding.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ATTENTION_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}.{part}": f"{ATTENTION}{name}_proj.{part}" for name in "qkvo" for part in PARTS
}
MLP_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.ffn_{name}.{part}": f"{MLP}{name}_proj.{part}" for name in ("gate", "up", "down") for part in PARTS
}
# LlamaForCausalLM.
DECODER_TENSORS: Final[TensorTable] = {
    **EMBEDDING_TENSORS,
    "layers.{}.attn_norm.weight": f"{LAYER}input_layernorm.weight",
    **ATTENTION_TENSORS,
    "layers.{}.ffn_norm.weight": f"{LAYER}post_attention_layernorm.weight",
    **MLP_TENSORS,
}
# Norms of each head of queries and keys.
HEAD_NORM_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}_norm.weight": f"{ATTENTION}{name}_norm.weight" for name in "qk"
}
# Norms of the outputs of attention and of the feed-forward block.
POST_NORM_TENSORS: Final[TensorTable] = {
    "layers.{}.attn_post_norm.weight": f"{LAYER}post_attention_layernorm.weight",
    "layers.{}.ffn_post_norm.weight": f"{LAYER}post_feedforward_layernorm.weight",
}
# Biases of layer norms.
NORM_BIAS_TENSORS: Final[TensorTable] = {
    "output_norm.bias": "model.norm.bias",
    "layers.{}.attn_norm.bias": f"{LAYER}input_layernorm.bias",
    "layers.{}.ffn_norm.bias": f"{LAYER}post_attention_layernorm.bias",
}


def fused_qkv_tensors(
    name: str, rows: Mapping[str, RowNumbers] = QKV_ROWS, *, parts: Sequence[str] = PARTS
) -> TensorTable:
    """Return queries, keys and values that are fused into one tensor.

    name    of the tensor, without ".weight"
    rows    of "q", "k" and "v"
    parts   of the tensor: "weight", "bias"
    """
    return {
        f"layers.{{}}.attn_{each}.{part}": StoredAs(f"{name}.{part}", TakeRows(numbers))
        for each, numbers in rows.items()
        for part in parts
    }


def fused_gate_up_tensors(name: str) -> TensorTable:
    """Return the gate and the up projection that are fused into the tensor of this name."""
    return {f"layers.{{}}.ffn_{each}.weight": StoredAs(name, TakeRows(rows)) for each, rows in GATE_UP_ROWS.items()}


def expert_tensors(
    block: str = MLP, projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> TensorTable:
    """Return the router and the experts' matrices, each a tensor of its own.

    block         prefix of their names
    projections   the names of gate, up and down projection
    """
    return {
        "layers.{}.ffn_gate_inp.weight": f"{block}gate.weight",
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": StoredAs(f"{block}experts.{{e}}.{stored}.weight", Stack())
            for name, stored in zip(("gate", "up", "down"), projections, strict=True)
        },
    }


def fused_expert_tensors(
    router: str, gate_up: str, down: str, shared_gate_up: str = "", shared_down: str = ""
) -> TensorTable:
    """Return experts whose gate and up projections are fused into one tensor [experts, both, in], gate first.

    The shared expert is included if its names are given.
    """
    found: TensorTable = {
        "layers.{}.ffn_gate_inp.weight": router,
        "layers.{}.ffn_down_exps.weight": down,
        "layers.{}.ffn_down_shexp.weight": shared_down,
    }
    for name in ("gate", "up"):
        found[f"layers.{{}}.ffn_{name}_exps.weight"] = StoredAs(gate_up, TakeRows(EXPERT_GATE_UP_ROWS[name], axis=1))
        shared = StoredAs(shared_gate_up, TakeRows(SHARED_EXPERT_GATE_UP_ROWS[name]))
        found[f"layers.{{}}.ffn_{name}_shexp.weight"] = shared
    return found


def shared_expert_tensors(block: str = f"{MLP}shared_experts.") -> TensorTable:
    """Return the tensors of the shared expert."""
    return {f"layers.{{}}.ffn_{name}_shexp.weight": f"{block}{name}_proj.weight" for name in ("gate", "up", "down")}


def choice_bias_tensors(stored: str | StoredAs = f"{MLP}gate.e_score_correction_bias") -> TensorTable:
    """Return the bias that is added to the router's scores to select experts."""
    return {CHOICE_BIAS: stored}


def without_prefix(tensors: TensorTable, prefix: str = "model.") -> TensorTable:
    """Return the tensors of folders of the model without its head, whose names lack a prefix."""
    return {
        parameter: tuple(StoredAs(each.name.removeprefix(prefix), *each.transforms) for each in alternatives(row))
        for parameter, row in tensors.items()
    }


def with_inner_prefix(tensors: TensorTable, inner: str = "model.language_model.") -> TensorTable:
    """Return the tensors of multimodal folders: the names of the text model have `inner` in place of "model."."""

    def renamed(stored: StoredAs) -> StoredAs:
        is_inner = stored.name.startswith("model.")
        name = inner + stored.name.removeprefix("model.") if is_inner else stored.name
        return StoredAs(name, *stored.transforms)

    return {parameter: tuple(renamed(each) for each in alternatives(row)) for parameter, row in tensors.items()}
