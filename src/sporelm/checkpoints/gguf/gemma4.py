"""GGUF files of Gemma 4: its text model."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import ModelFileError
from sporelm.models.architectures.gemma4 import Gemma4, Gemma4Config
from sporelm.models.config import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ModelConfig, Scales

KV_HEADS: Final = "attention.head_count_kv"
FFN_WIDTHS: Final = "feed_forward_length"
SHARED_LAYERS: Final = "attention.shared_kv_layers"
LOGIT_CAP: Final = "final_logit_softcapping"
DEFAULT_LOGIT_CAP: Final = 30.0  # of llama.cpp, for a file without the key
# Our keys for numbers that files store as lists.
LOCAL_KV_HEADS: Final = "local_kv_heads"
HAS_DOUBLE_WIDE_MLP: Final = "has_double_wide_mlp"
# A cap of 0 means none: llama.cpp has one for a file that lacks the key.
OPTIONAL_LOGIT_CAP_KEY: Final = LOGIT_CAP_KEY._replace(low=0.0)
LOCAL_THETA_KEY: Final = Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, 10000.0)
# Per-layer inputs (llama.cpp's llama-arch.cpp).
PER_LAYER_INPUT_TENSORS: Final[TensorTable] = {
    "layer_embedding.weight": "per_layer_token_embd.weight",
    "layer_projection.weight": "per_layer_model_proj.weight",
    "layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "layers.{}.input_gate.weight": "blk.{}.inp_gate.weight",
    "layers.{}.input_up.weight": "blk.{}.proj.weight",
    "layers.{}.input_norm.weight": "blk.{}.post_norm.weight",
    "layers.{}.out_scale.weight": "blk.{}.layer_output_scale.weight",
}
# The mixture of experts parallel to the dense block.
PARALLEL_MIXTURE_TENSORS: Final[TensorTable] = {
    **expert_tensors(has_fused=True),
    "layers.{}.ffn_gate_inp_norm.weight": "blk.{}.ffn_gate_inp.scale",
    "layers.{}.ffn_factors.weight": "blk.{}.ffn_down_exps.scale",
    "layers.{}.ffn_experts_norm.weight": "blk.{}.pre_ffw_norm_2.weight",
    "layers.{}.ffn_dense_post_norm.weight": "blk.{}.post_ffw_norm_1.weight",
    "layers.{}.ffn_experts_post_norm.weight": "blk.{}.post_ffw_norm_2.weight",
}


def gemma_scales(config: ModelConfig) -> Scales:
    """Return the scales of Gemma 3n and 4: attention scores are not scaled."""
    return Scales(embedding=config.width**0.5, attention=1.0)


def check_shared_layers(config: ModelConfig, num_kv_shared_layers: int, values: ConfigValues) -> None:
    """Raise ModelFileError if layers share keys and values with a type of layer that does not precede them."""
    first = config.layers - num_kv_shared_layers
    types = {layer in config.full_layers for layer in range(first)}
    if not {layer in config.full_layers for layer in range(max(first, 0), config.layers)} <= types:
        what = "layers that share keys and values have no earlier layer of their type to share with"
        keys = values.list_keys("num_kv_shared_layers", "layer_types")
        raise ModelFileError(f"{values.where}: {what}{keys}")


def with_checked_layers(config: Gemma4Config, values: ConfigValues) -> Gemma4Config:
    """Return the configuration with its scales. Raises ModelFileError for layers that do not fit each other."""
    heads, local_heads, local_dim = config.heads, config.local_kv_heads, config.local_head_dim
    if heads % local_heads or local_dim % 2:
        what = f"{heads} query heads, {local_heads} KV heads of {local_dim}"
        what = f"{what} in layers with a window: query heads must be a multiple of KV heads, and their width even"
        keys = values.list_keys("num_attention_heads", "num_key_value_heads", "head_dim")
        raise ModelFileError(f"{values.where}: {what}{keys}")
    check_shared_layers(config, config.num_kv_shared_layers, values)
    return replace(config, scales=gemma_scales(config), logit_cap=config.logit_cap or None)


def with_single_numbers_by_type(values: ConfigValues) -> ConfigValues:
    """Return the metadata with a number for each type of layer in place of lists; other lists are rejected later."""
    heads, widths, shared, layers = (values.get(key) for key in (KV_HEADS, FFN_WIDTHS, SHARED_LAYERS, "block_count"))
    pattern = [bool(mark) for mark in _read_list(values.get(WINDOW_PATTERN), layers)]
    changes: dict[str, Any] = {LOCAL_KV_HEADS: heads, LOGIT_CAP: values.get(LOGIT_CAP, DEFAULT_LOGIT_CAP)}
    if counts := _read_list(heads, len(pattern)):
        local, full = (
            {int(count) for count, mark in zip(counts, pattern, strict=True) if mark is has_window}
            for has_window in (True, False)
        )
        if len(local) == len(full) == 1:
            changes |= {LOCAL_KV_HEADS: local.pop(), KV_HEADS: full.pop()}
    if numbers := _read_list(widths, len(pattern)):
        width, own = int(numbers[0]), len(pattern) - (shared if isinstance(shared, int) else 0)
        doubled = [width if layer < own else 2 * width for layer in range(len(pattern))]
        if [int(number) for number in numbers] == doubled:
            changes |= {FFN_WIDTHS: width, HAS_DOUBLE_WIDE_MLP: True}
    return values.with_changes(changes)


def _read_list(value: Any, count: Any) -> list[int]:
    """Return a list of `count` integers; an empty one for anything else."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, list) or not isinstance(count, int) or len(items) != count:
        return []
    return items if all(isinstance(item, int) for item in items) else []


@register
class Gemma4Gguf(GgufSchema):
    """`gemma4`. Keys serve as values if a layer without a window has no value tensor."""

    names = ("gemma4",)
    architecture = Gemma4
    keys = gguf_keys(
        Key("head_dim", "attention.key_length", "u32"),
        Key("head_dim", "attention.value_length", "u32"),
        Key("local_head_dim", "attention.key_length_swa", "u32", 2, MAX_HEAD_DIM),
        Key("local_head_dim", "attention.value_length_swa", "u32", 2, MAX_HEAD_DIM),
        Key("local_head_dim", "rope.dimension_count_swa", "u32", 2, MAX_HEAD_DIM),
        Key("num_kv_shared_layers", SHARED_LAYERS, "u32", 0, MAX_LAYERS, 0),
        Key("per_layer_input_size", "embedding_length_per_layer_input", "u32", 0, MAX_WIDTH, 0),
        *gguf_expert_keys("count", "used", "ffn", optional=True),
        OPTIONAL_LOGIT_CAP_KEY,
        LOCAL_THETA_KEY,
        without=("kv_heads",),
    )
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        **PER_LAYER_INPUT_TENSORS,
        **PARALLEL_MIXTURE_TENSORS,
    }
    has_window_pattern = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Gemma4Config:
        values = with_single_numbers_by_type(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Gemma4Config)
        if not (pattern := _read_list(values.get(WINDOW_PATTERN), config.layers)):
            what = f"{WINDOW_PATTERN} must be a list of booleans for the {config.layers} layers"
            raise ModelFileError(f"{values.where}: {what}")
        config = replace(
            config,
            has_double_wide_mlp=values.flag(HAS_DOUBLE_WIDE_MLP, False),
            local_kv_heads=values.integer(LOCAL_KV_HEADS, 1, MAX_HEADS),
            full_layers=frozenset(layer for layer, has_window in enumerate(pattern) if not has_window),
        )
        config = with_checked_layers(config, values)
        first = min(config.full_layers, default=0)
        return replace(config, has_tied_values=f"blk.{first}.attn_v.weight" not in gguf.shapes)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Gemma4Config)
        shapes = [config.for_layer(layer) for layer in range(config.layers)]
        found: dict[str, MetadataEntry] = {
            WINDOW_PATTERN: ("[bool]", [config.window_of(layer) is not None for layer in range(config.layers)]),
            KV_HEADS: ("[u32]", [shape.kv_heads for shape in shapes]),
        }
        if config.has_double_wide_mlp:
            found[FFN_WIDTHS] = "[u32]", [shape.ffn for shape in shapes]
        if config.logit_cap is None:
            found[LOGIT_CAP] = "f32", 0.0
        return {f"{self.names[0]}.{key}": entry for key, entry in found.items()}
