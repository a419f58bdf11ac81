"""GGUF files of Gemma 3n: its text model."""

from dataclasses import replace
from math import inf
from statistics import NormalDist
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.gemma4 import (
    DEFAULT_LOGIT_CAP,
    LOCAL_THETA_KEY,
    LOGIT_CAP,
    OPTIONAL_LOGIT_CAP_KEY,
    PER_LAYER_INPUT_TENSORS,
    SHARED_LAYERS,
    check_shared_layers,
    gemma_scales,
)
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import Shape, TakePart
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.gemma3n import Gemma3n, Gemma3nConfig
from sporelm.models.config import MAX_LAYERS, MAX_WIDTH, ModelConfig

STREAMS: Final = 4  # the matrices of all but the first are one tensor
WINDOW_STEP: Final = 5  # layers from one without a window to the next
THRESHOLDS: Final = "activation_sparsity_scale"
MAX_THRESHOLD: Final = 1e3
SPARSE_LAYERS: Final = 10  # leading layers with sparse activations
SPARSITY: Final = 0.95  # the share of values that they drop
MIN_SPARSITY: Final = 1e-3
ACTIVE_STREAM: Final = "altup.active_idx"
MAX_STREAMS: Final = 8
DEFAULT_OWN_KV_LAYERS: Final = 20  # of llama.cpp, for a file without the key of shared layers
ALTUP_TENSORS: Final[TensorTable] = {
    "layers.{}.altup_router.weight": "blk.{}.altup_router.weight",
    "layers.{}.altup_router_norm.weight": "blk.{}.altup_router_norm.weight",
    "layers.{}.altup_predict.weight": "blk.{}.altup_predict_coef.weight",
    "layers.{}.altup_correct.weight": "blk.{}.altup_correct_coef.weight",
    "layers.{}.altup_scale.weight": "blk.{}.altup_correct_scale.weight",
    "layers.{}.laurel_left.weight": "blk.{}.laurel_l.weight",
    "layers.{}.laurel_right.weight": "blk.{}.laurel_r.weight",
    "layers.{}.laurel_norm.weight": "blk.{}.laurel_post_norm.weight",
    **{
        f"{parameter}_{number}.weight": StoredAs(f"{stored}.weight", TakePart(number, STREAMS - 1))
        for parameter, stored in (("altup_spread", "altup_proj"), ("altup_merge", "altup_unembd_proj"))
        for number in range(STREAMS - 1)
    },
}
# Layers that share keys and values of other layers have unused tensors of their own.
UNREAD_TENSORS: Final = tuple(f"blk.{{}}.attn_{name}.weight" for name in ("k", "v", "k_norm"))


def default_sparsity(layers: int) -> list[float]:
    """Return the default share of values that each layer drops."""
    return [SPARSITY if layers > SPARSE_LAYERS and layer < SPARSE_LAYERS else 0.0 for layer in range(layers)]


def thresholds_of_sparsity(values: ConfigValues, key: str, shares: Any, layers: int) -> tuple[float, ...]:
    """Return shares of dropped values as quantiles of a normal distribution; -inf: none are dropped."""
    shares = [shares] * layers if isinstance(shares, int | float) else shares
    numbers = ConfigValues({key: shares}, values.where).numbers(key, layers, 0.0, 1 - MIN_SPARSITY)
    return tuple(NormalDist().inv_cdf(share) if share >= MIN_SPARSITY else -inf for share in numbers)


def with_checked_layers(config: Gemma3nConfig, values: ConfigValues) -> Gemma3nConfig:
    """Return the configuration with its scales. Raises ModelFileError for layers that do not fit each other."""
    check_shared_layers(config, config.num_kv_shared_layers, values)
    return replace(config, scales=gemma_scales(config), logit_cap=config.logit_cap or None)


@register
class Gemma3nGguf(GgufSchema):
    """`gemma3n`. The rank of the learned residual, and the vocabulary of per-layer inputs, are those of the tensors."""

    names = ("gemma3n",)
    architecture = Gemma3n
    keys = gguf_keys(
        Key("per_layer_input_size", "embedding_length_per_layer_input", "u32", 1, MAX_WIDTH),
        Key("altup_num_inputs", "altup.num_inputs", "u32", STREAMS, STREAMS),
        Key("num_kv_shared_layers", SHARED_LAYERS, "u32", 0, MAX_LAYERS, 0),
        OPTIONAL_LOGIT_CAP_KEY,
        LOCAL_THETA_KEY,
    )
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        **PER_LAYER_INPUT_TENSORS,
        **ALTUP_TENSORS,
    }
    ignored_tensors = UNREAD_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Gemma3nConfig:
        values = gguf.values if values is None else values
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Gemma3nConfig)
        if values.integer(ACTIVE_STREAM, 0, MAX_STREAMS, 0):
            raise UnsupportedModel(f"{values.where}: {ACTIVE_STREAM} is not 0, which is not supported")
        if not values.has(LOGIT_CAP):
            config = replace(config, logit_cap=DEFAULT_LOGIT_CAP)
        if not values.has(SHARED_LAYERS):
            config = replace(config, num_kv_shared_layers=max(config.layers - DEFAULT_OWN_KV_LAYERS, 0))
        config = with_checked_layers(config, values)
        return replace(
            config,
            activation_thresholds=_read_thresholds(values, config.layers),
            laurel_rank=gguf.shapes.get("blk.0.laurel_l.weight", (0,))[0],
            per_layer_vocab=gguf.shapes.get("per_layer_token_embd.weight", (0,))[0],
        )

    def required_tensors(self, config: ModelConfig) -> dict[str, Shape]:
        """Return the keys and values of layers that share those of others, and rows of all tokens: llama.cpp requires
        them."""
        assert isinstance(config, Gemma3nConfig)
        keys = config.kv_heads * config.head_dim
        rows = (config.vocab, config.per_layer_input_size * config.layers)
        found: dict[str, Shape] = {"per_layer_token_embd.weight": rows}
        for layer in range(config.layers - config.num_kv_shared_layers, config.layers):
            found |= {f"blk.{layer}.attn_{name}.weight": (keys, config.width) for name in "kv"}
            found[f"blk.{layer}.attn_k_norm.weight"] = (config.head_dim,)
        return found

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Gemma3nConfig)
        found: dict[str, MetadataEntry] = {} if config.logit_cap else {LOGIT_CAP: ("f32", 0.0)}
        found |= {THRESHOLDS: ("[f32]", list(config.activation_thresholds)), ACTIVE_STREAM: ("u32", 0)}
        return {f"{self.names[0]}.{key}": entry for key, entry in found.items()}


def _read_thresholds(values: ConfigValues, layers: int) -> tuple[float, ...]:
    """Return the threshold of each layer. Raises ModelFileError unless there is a number for each."""
    given: Any = values.get(THRESHOLDS)
    numbers = given.tolist() if hasattr(given, "tolist") else given
    if numbers is None:
        return thresholds_of_sparsity(values, THRESHOLDS, default_sparsity(layers), layers)
    is_list = isinstance(numbers, list) and len(numbers) == layers and all(type(each) is float for each in numbers)
    if not is_list or any(each != each or each > MAX_THRESHOLD for each in numbers):
        raise ModelFileError(
            f"{values.where}: {THRESHOLDS} is {format_value(numbers)}; it must be a number for each layer"
        )
    return tuple(each if each > -MAX_THRESHOLD else -inf for each in numbers)
