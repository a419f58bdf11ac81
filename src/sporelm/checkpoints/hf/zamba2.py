"""Hugging Face folders of Zamba2."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.zamba2 import SHARED, inner_tensors, with_hybrid_layers
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import EMBEDDING_TENSORS, LAYER
from sporelm.checkpoints.hybrid_layers import ATTENTION_TYPES, RECURRENT_TYPES
from sporelm.checkpoints.mamba_keys import mamba2_hf_keys, mamba2_hf_tensors, with_hf_mamba2_sizes
from sporelm.checkpoints.row_numbers import GATE_UP_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.zamba2 import MAX_HYBRID_LAYERS, Zamba2, Zamba2Config
from sporelm.models.config import MAX_WIDTH, ModelConfig

BLOCK: Final = f"{LAYER}shared_transformer."
KINDS: Final = "layers_block_type"
HYBRID: Final = "hybrid"


def normalize(values: ConfigValues) -> ConfigValues:
    """Return the values with the widths of heads, and with layer types under other schemas' names."""
    keys = ("hidden_size", "mamba_expand", "n_mamba_heads", "num_attention_heads")
    width, expand, mamba_heads, heads = (values.get(key) for key in keys)
    kinds, sizes = values.get(KINDS), {}
    if all(type(each) is int and each > 0 for each in (width, expand, mamba_heads, heads)):
        sizes = {"mamba_headdim": width * expand // mamba_heads, "attention_head_dim": 2 * width // heads}
    if isinstance(kinds, list):
        names = {HYBRID: ATTENTION_TYPES[0], "mamba": RECURRENT_TYPES[0]}
        kinds = [names.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    return values.with_changes({**sizes, KINDS: kinds})


def adapter_tensors(number: int) -> TensorTable:
    """Return the adapter matrices of one position of a shared block, which are stored with the block."""
    mlp = f"{BLOCK}feed_forward.gate_up_proj_adapter_list.{number}."
    found: TensorTable = {}
    for name in "qkv":
        stored = f"{BLOCK}self_attn.linear_{name}_adapter_list.{number}."
        found[f"{SHARED}attn_{name}_a{number}.weight"] = f"{stored}0.weight"
        found[f"{SHARED}attn_{name}_b{number}.weight"] = f"{stored}1.weight"
    found[f"{SHARED}ffn_a{number}.weight"] = f"{mlp}0.weight"
    for name, rows in GATE_UP_ROWS.items():
        found[f"{SHARED}ffn_{name}_b{number}.weight"] = StoredAs(f"{mlp}1.weight", TakeRows(rows))
    return found


@register
class Zamba2ForCausalLM(HfSchema):
    """Zamba2."""

    model_type = "zamba2"
    architecture = Zamba2
    keys = hf_keys(
        *mamba2_hf_keys(
            conv_kernel="mamba_d_conv",
            num_heads="n_mamba_heads",
            num_groups="mamba_ngroups",
            state_size="mamba_d_state",
            head_dim="mamba_headdim",
            expand="mamba_expand",
            has_bias="add_bias_linear",
        ),
        Key("head_dim", "attention_head_dim", "u32"),
        Key("mamba.min_time_step", "time_step_min", "f32", 0.0, 1.0, 0.001),
        Key("num_mem_blocks", "num_mem_blocks", "u32", 1, MAX_HYBRID_LAYERS),
        Key("adapter_rank", "adapter_rank", "u32", 1, MAX_WIDTH),
        Key("has_attention_adapters", "use_shared_attention_adapter", "bool"),
        Key("mlp_bias", "add_bias_linear", "bool"),
    )
    class_keys = {"add_bias_linear": "mamba.has_bias", "use_shared_attention_adapter": "has_attention_adapters"}
    defaults = {
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "adapter_rank": 128,
        "num_mem_blocks": 1,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    supported = {
        "hidden_act": ("gelu",),
        "rms_norm_eps": (1e-5,),
        "use_long_context": (False,),
        "tie_word_embeddings": (True,),
    }
    ffn_widths = 4
    tensors = {
        **EMBEDDING_TENSORS,
        "output_norm.weight": "model.final_layernorm.weight",
        "layers.{}.attn_norm.weight": f"{LAYER}input_layernorm.weight",
        **mamba2_hf_tensors(f"{LAYER}mamba."),
        "layers.{}.inner.attn_norm.weight": f"{LAYER}mamba_decoder.input_layernorm.weight",
        **inner_tensors(mamba2_hf_tensors(f"{LAYER}mamba_decoder.mamba.")),
        "layers.{}.shared_out.weight": f"{LAYER}linear.weight",
        f"{SHARED}attn_norm.weight": f"{BLOCK}input_layernorm.weight",
        f"{SHARED}ffn_norm.weight": f"{BLOCK}pre_ff_layernorm.weight",
        **{f"{SHARED}attn_{name}.weight": f"{BLOCK}self_attn.{name}_proj.weight" for name in "qkvo"},
        **{
            f"{SHARED}ffn_{name}.{part}": StoredAs(f"{BLOCK}feed_forward.gate_up_proj.{part}", TakeRows(rows))
            for name, rows in GATE_UP_ROWS.items()
            for part in PARTS
        },
        **{f"{SHARED}ffn_down.{part}": f"{BLOCK}feed_forward.down_proj.{part}" for part in PARTS},
        **{parameter: row for number in range(MAX_HYBRID_LAYERS) for parameter, row in adapter_tensors(number).items()},
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = normalize(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Zamba2Config)
        config = with_hf_mamba2_sizes(config, values)
        return with_hybrid_layers(config, values, KINDS, has_rope=values.flag("use_mem_rope", False))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Zamba2Config)
        kinds = [HYBRID if layer in config.hybrid_layers else RECURRENT_TYPES[0] for layer in range(config.layers)]
        return {KINDS: kinds, "use_mem_rope": config.rotary > 0}
