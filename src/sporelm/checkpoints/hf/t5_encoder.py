"""Hugging Face folders of the encoders of T5 and mT5: sentence-t5, GTR, Instructor."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.encoder_schema import EncoderHfSchema
from sporelm.checkpoints.gguf.t5_encoder import T5_CONSTANTS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.t5_encoder import GATED_GELU, RELU, UNGATED, T5Encoder
from sporelm.models.biased_encoder import DISTANCE_BIASES
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig
from sporelm.models.distances import BUCKETS, FARTHEST
from sporelm.models.encoder_config import EncoderConfig

LAYER: Final = "encoder.block.{}.layer."
EMBEDDINGS: Final = (
    "shared.weight",
    "encoder.embed_tokens.weight",
)  # folders have either or both names of the same matrix
# Parameters of a layer -> stored names, both without ".weight".
_LAYER: Final = {
    **{f"attn_{part}": f"0.SelfAttention.{part}" for part in "qkvo"},
    "attn_norm": "0.layer_norm",
    "ffn_norm": "1.layer_norm",
    "ffn_gate": "1.DenseReluDense.wi_0",
    "ffn_up": "1.DenseReluDense.wi_1",
    f"ffn_up{UNGATED}": "1.DenseReluDense.wi",
    "ffn_down": "1.DenseReluDense.wo",
    f"ffn_down{UNGATED}": "1.DenseReluDense.wo",
}
T5_DEFAULTS: Final = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "n_positions": 512,
    "vocab_size": 32128,
    "feed_forward_proj": RELU,
    "layer_norm_epsilon": 1e-6,
}


@register
class T5EncoderModel(EncoderHfSchema):
    """T5."""

    model_type = "t5"
    architecture = T5Encoder
    keys = hf_keys(
        Key("layers", "num_layers", "u32"),
        Key("width", "d_model", "u32"),
        Key("ffn", "d_ff", "u32"),
        Key("heads", "num_heads", "u32"),
        Key("head_dim", "d_kv", "u32", 2, MAX_HEAD_DIM),
        Key("eps", "layer_norm_epsilon", "f32"),
        Key("activation", "feed_forward_proj", "str", default=RELU, choices=(RELU, GATED_GELU)),
        without=("kv_heads",),
    )
    defaults: dict[str, Any] = T5_DEFAULTS
    constants = T5_CONSTANTS
    supported = {
        "relative_attention_num_buckets": (BUCKETS,),
        "relative_attention_max_distance": (FARTHEST,),
        "is_decoder": (False,),
    }
    positions_key = "n_positions"
    tensors = {
        "embedding.weight": EMBEDDINGS,
        "output_norm.weight": "encoder.final_layer_norm.weight",
        DISTANCE_BIASES: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        **{f"layers.{{}}.{name}.weight": f"{LAYER}{stored}.weight" for name, stored in _LAYER.items()},
    }
    ignored_tensors = (*EMBEDDINGS, "decoder.*", "lm_head.weight")

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return T5EncoderModel()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        return super().config_from_json(values.with_values(_with_block_kind(dict(values.values))), dtype)


@register
class MT5EncoderModel(T5EncoderModel):
    """mT5."""

    model_type = "mt5"
    defaults = {
        **T5_DEFAULTS,
        "vocab_size": 250112,
        "feed_forward_proj": GATED_GELU,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
    }


def _with_block_kind(json: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the kind of feed-forward block in one key; transformers splits it into several, and
    writes and reads those too."""
    given = json.get("feed_forward_proj")
    if not isinstance(given, str):
        return json
    function = "gelu_new" if given == GATED_GELU else given.rpartition("-")[2]
    parts = json.get("is_gated_act", given.startswith("gated-")), json.get("dense_act_fn", function)
    for kind, own_parts in {RELU: (False, "relu"), GATED_GELU: (True, "gelu_new")}.items():
        if parts == own_parts:
            return {**json, "feed_forward_proj": kind}
    beside = {key: json[key] for key in ("is_gated_act", "dense_act_fn") if key in json}
    what = f"feed_forward_proj {format_value(given)} is not supported" + (
        f" with {format_value(beside)}" if beside else ""
    )
    raise UnsupportedModel(f"config.json: {what}; {RELU} and {GATED_GELU} are")
