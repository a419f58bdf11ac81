"""Hugging Face folders of PLaMo 2."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.plamo2 import CONVOLVED_ROWS, INPUT_ROWS, PLAMO2_CONSTANTS, with_time_step_rank
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import EMBEDDING_TENSORS, fused_gate_up_tensors, fused_qkv_tensors
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.mamba_keys import CONV_TAPS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import AddConstant, NegativeExp, TakeRows
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.plamo2 import Plamo2, Plamo2Config
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, ModelConfig

LAYER: Final = "model.layers.layers.{}."
MIXER: Final = f"{LAYER}mixer."
FULL_LAYERS: Final = "full_attention_idx"
DEFAULT_STEP: Final = 2
DEFAULT_WINDOW: Final = 2048
# Tensors that PLaMo 3 shares. Norms are stored minus their initial values.
PLAMO_TENSORS: Final[TensorTable] = {
    **EMBEDDING_TENSORS,
    "output_norm.weight": StoredAs("model.norm.weight", AddConstant(1.0)),
    "layers.{}.attn_norm.weight": StoredAs(f"{LAYER}pre_mixer_norm.weight", AddConstant(1.0)),
    "layers.{}.attn_post_norm.weight": StoredAs(f"{LAYER}post_mixer_norm.weight", AddConstant(1 / 5)),
    "layers.{}.ffn_norm.weight": StoredAs(f"{LAYER}pre_mlp_norm.weight", AddConstant(1.0)),
    "layers.{}.ffn_post_norm.weight": StoredAs(f"{LAYER}post_mlp_norm.weight", AddConstant(5**-1.5)),
    **fused_qkv_tensors(f"{MIXER}qkv_proj", parts=("weight",)),
    "layers.{}.attn_o.weight": f"{MIXER}o_proj.weight",
    **fused_gate_up_tensors(f"{LAYER}mlp.gate_up_proj.weight"),
    "layers.{}.ffn_down.weight": f"{LAYER}mlp.down_proj.weight",
}


def periodic_attention_layers(step: int, layers: int) -> frozenset[int]:
    """Return the attention layers: one in each run of `step`, or only the last layer of a model with few."""
    return frozenset({layers - 1} if layers <= step // 2 else range(step // 2, layers, step))


def read_full_layers(values: ConfigValues, layers: int) -> frozenset[int]:
    """Return the layers without a window. Raises ModelFileError for anything but a list of layers."""
    given = values.get(FULL_LAYERS) or []
    if not isinstance(given, list) or any(type(layer) is not int or not 0 <= layer < layers for layer in given):
        what = f"{FULL_LAYERS} is {format_value(given)}; it must be a list of layer numbers below {layers}"
        raise ModelFileError(f"{values.where}: {what}")
    return frozenset(given)


@register
class Plamo2ForCausalLM(HfSchema):
    """PLaMo 2."""

    model_type = "plamo2"
    architecture = Plamo2
    keys = hf_keys(
        Key("head_dim", "hidden_size_per_head", "u32"),
        Key("mamba.conv_kernel", "mamba_d_conv", "u32", 2, MAX_CONV_KERNEL),
        Key("mamba.num_heads", "mamba_num_heads", "u32", 1, MAX_HEADS),
        Key("mamba.state_size", "mamba_d_state", "u32", 1, MAX_HEAD_DIM),
    )
    defaults = {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_num_heads": 64,
        "hidden_size_per_head": 128,
    }
    constants = PLAMO2_CONSTANTS
    supported = {
        "rms_norm_eps": (1e-6,),
        "mamba_enabled": (True,),
        "linear_type": ("normal",),
        "image_token_id": (None,),
    }
    tensors = {
        **PLAMO_TENSORS,
        "layers.{}.attn_q_norm.weight": f"{MIXER}q_weight",
        "layers.{}.attn_k_norm.weight": f"{MIXER}k_weight",
        **{
            f"layers.{{}}.ssm_{name}.weight": StoredAs(f"{MIXER}{stored}.weight", TakeRows(rows))
            for stored, parts in (("in_proj", INPUT_ROWS), ("bcdt_proj", CONVOLVED_ROWS))
            for name, rows in parts.items()
        },
        "layers.{}.ssm_write_norm.weight": f"{MIXER}B_norm_weight",
        "layers.{}.ssm_read_norm.weight": f"{MIXER}C_norm_weight",
        "layers.{}.ssm_rank_norm.weight": f"{MIXER}dt_norm_weight",
        "layers.{}.ssm_dt.weight": f"{MIXER}dt_proj.weight",
        "layers.{}.ssm_dt.bias": f"{MIXER}dt_bias",
        "layers.{}.ssm_o.weight": f"{MIXER}out_proj.weight",
        "layers.{}.ssm_conv.weight": StoredAs(f"{MIXER}conv1d.weight", *CONV_TAPS),
        "layers.{}.ssm.decay": StoredAs(f"{MIXER}A_log", NegativeExp()),
        "layers.{}.ssm.skip": f"{MIXER}D",
    }
    has_window_pattern = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Plamo2Config)
        step = values.integer("mamba_step", 2, MAX_LAYERS, DEFAULT_STEP)
        attention_layers = periodic_attention_layers(step, config.layers)
        inner_size = config.mamba.num_heads * config.head_dim
        config = replace(config, mamba=replace(config.mamba, inner_size=inner_size, head_dim=config.head_dim))
        # The key counts previous positions; `window` includes the current one.
        window = read_window(values, "attention_window_size", DEFAULT_WINDOW)
        full_layers = read_full_layers(values, config.layers)
        config = replace(config, window=window and window + 1, full_layers=full_layers)
        return with_time_step_rank(replace(config, attention_layers=attention_layers))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Plamo2Config)
        layers, attention_layers = config.layers, config.attention_layers
        steps = range(2, 2 * layers + 3)
        step = next((step for step in steps if periodic_attention_layers(step, layers) == attention_layers), None)
        if step is None or config.mamba.head_dim != config.head_dim:
            what = "attention layers are not at regular intervals, or heads differ, which config.json cannot represent"
            raise UnsupportedModel(what)
        full_layers = sorted(config.full_layers if config.window else attention_layers)
        window = (config.window or DEFAULT_WINDOW + 1) - 1
        return {"mamba_step": step, FULL_LAYERS: full_layers, "attention_window_size": window}


@register
class PLaMo2ForCausalLM(Plamo2ForCausalLM):
    """PLaMo 2 under its first class name."""
