"""What files of Nemotron-H call its weights, and how they say what each layer is.

GGUF: llama.cpp's nemotron-h.cpp. Hugging Face: the configuration class and the state dict of NemotronHForCausalLM.
"""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import choice_bias_name, expert_names
from sporelm.checkpoints.fields import shown
from sporelm.checkpoints.tensor_names import Names, Stored, Table, with_bias
from sporelm.errors import ModelFileError
from sporelm.models.config import ModelConfig
from sporelm.models.families.space_fields import space_names

SPACE, ATTENTION, MIXTURE, DENSE = "linear_attention", "full_attention", "moe", "mlp"
# By the letters of `hybrid_override_pattern`, and the words of before transformers 5.
KINDS = {"M": SPACE, "*": ATTENTION, "E": MIXTURE, "-": DENSE, "mamba": SPACE, "attention": ATTENTION}
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "intermediate_size": 21504, "mamba_num_heads": 128}
NUMBERS |= {"mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "layer_norm_epsilon": 1e-5}
NUMBERS |= {"max_position_embeddings": 4096, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}
NUMBERS |= {"moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "norm_topk_prob": True}
FLAGS = (
    *(("use_bias", "own.bias"), ("use_conv_bias", "own.taps_bias"), ("mlp_bias", "mlp_bias")),
    ("norm_topk_prob", "experts.renormalize"),
)
OLDER = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias"}
OLDER |= {"time_step_limit": "mamba_dt_limit"}
RMS_EPS, OTHER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"  # llama.cpp wants the latter
ONLY: dict[str, tuple[Any, ...]] = {"mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",)}
ONLY |= {"attention_bias": (False,), "sliding_window": (None,), "tie_word_embeddings": (False,)}
KV, FFN = "attention.head_count_kv", "feed_forward_length"
MIXER = "backbone.layers.{}.mixer."

NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "backbone.embeddings.weight"),
    Names("output_norm.weight", "output_norm.weight", "backbone.norm_f.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"),
    *space_names(MIXER),
    *(
        Names(f"layers.{{}}.attn_{ours}.weight", f"blk.{{}}.attn_{gguf}.weight", f"{MIXER}{ours}_proj.weight")
        for ours, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
    ),
    *(
        names
        for part in ("up", "down")
        for end, block in (("", ""), ("_shexp", "shared_experts."))
        for names in with_bias(
            f"layers.{{}}.ffn_{part}{end}", f"blk.{{}}.ffn_{part}{end}", f"{MIXER}{block}{part}_proj"
        )
    ),
    *(names for names in expert_names(MIXER) if "ffn_gate_exps" not in names.ours),
    choice_bias_name(f"{MIXER}gate.e_score_correction_bias"),
    *(
        names
        for number, part in enumerate(("down", "up"), 1)
        for names in with_bias(
            f"layers.{{}}.ffn_latent_{part}", f"blk.{{}}.ffn_latent_{part}", f"{MIXER}fc{number}_latent_proj"
        )
    ),
)


# Names that transformers 5 has in memory, under which some folders were written.
OTHERS: Table = tuple(
    names._replace(
        hf=replace(names.hf, name=names.hf.name.replace("backbone.", "model."))
        if isinstance(names.hf, Stored)
        else names.hf.replace("backbone.", "model.")
    )
    for names in NAMES
)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """What each layer is, as a list, where config.json may have a letter for each; keys of before transformers 5."""
    told = values.get("layers_block_type") or values.get("layer_types")
    told = told or values.get("hybrid_override_pattern") or "ME*-"  # the last is what transformers takes
    if not isinstance(told, str | list):
        raise ModelFileError(f"config.json: layers_block_type is {shown(told)}; it must be a list of kinds of layers")
    kinds = [KINDS.get(each, each) if isinstance(each, str) else each for each in told]
    older = {ours: values[old] for ours, old in OLDER.items() if values.get(old) is not None}
    dims = [values[key] for key in ("head_dim", "attention_head_dim") if values.get(key) is not None]
    dim = dims[0] if dims else 128
    return {**values, **older, "head_dim": dim, "layers_block_type": kinds, "num_hidden_layers": len(kinds)}


def regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata in which a layer is what it has key heads for, or a feed-forward block: the list of kinds, and one
    number of key heads and one width for all layers that have them."""
    found = {RMS_EPS: values.get(OTHER_EPS), **values}
    lengths = {}
    for key in (KV, FFN):
        held: Any = values.get(key)
        held = held.tolist() if hasattr(held, "tolist") else held
        if not isinstance(held, list) or not all(type(each) is int for each in held):
            return found
        lengths[key] = held
    experts = values.get("expert_count")
    block = MIXTURE if type(experts) is int and experts > 0 else DENSE
    pairs = zip(lengths[KV], lengths[FFN], strict=False)
    kinds = [block if width else ATTENTION if heads else SPACE for heads, width in pairs]
    return {**found, "layers_block_type": kinds, **{key: max(held, default=0) or 1 for key, held in lengths.items()}}


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """The same to be written."""
    gguf, ffn = ("nemotron_h_moe", config.experts.ffn) if config.experts else ("nemotron_h", config.ffn)
    kinds = config.own.kinds
    return {
        f"{gguf}.{KV}": ("[u32]", [config.kv_heads if kind == ATTENTION else 0 for kind in kinds]),
        f"{gguf}.{FFN}": ("[u32]", [ffn if kind in (MIXTURE, DENSE) else 0 for kind in kinds]),
        f"{gguf}.{OTHER_EPS}": ("f32", config.eps),
    }
