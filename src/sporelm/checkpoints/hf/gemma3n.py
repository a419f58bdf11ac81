"""Hugging Face folders of Gemma 3n: the text model alone, and the multimodal model."""

from dataclasses import replace
from math import inf
from statistics import NormalDist
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma3n import (
    STREAMS,
    WINDOW_STEP,
    default_sparsity,
    thresholds_of_sparsity,
    with_checked_layers,
)
from sporelm.checkpoints.gguf.gemma4 import LOCAL_THETA_KEY, OPTIONAL_LOGIT_CAP_KEY
from sporelm.checkpoints.hf.gemma3 import with_rope_of_full_layers
from sporelm.checkpoints.hf.gemma4 import AROUND_NORM_TENSORS, PER_LAYER_INPUT_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, LAYER
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS
from sporelm.models.architectures.gemma3n import Gemma3n, Gemma3nConfig
from sporelm.models.config import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ModelConfig

DEFAULT_WINDOW: Final = 512
FFN_WIDTHS: Final = "intermediate_size"
SPARSITY: Final = "activation_sparsity_pattern"
PER_LAYER_VOCAB: Final = "vocab_size_per_layer_input"
ALTUP_TENSORS: Final[TensorTable] = {
    "layers.{}.altup_router.weight": f"{LAYER}altup.modality_router.weight",
    "layers.{}.altup_router_norm.weight": f"{LAYER}altup.router_norm.weight",
    "layers.{}.altup_predict.weight": f"{LAYER}altup.prediction_coefs.weight",
    "layers.{}.altup_correct.weight": f"{LAYER}altup.correction_coefs.weight",
    "layers.{}.altup_scale.weight": f"{LAYER}altup.correct_output_scale",
    "layers.{}.laurel_left.weight": f"{LAYER}laurel.linear_left.weight",
    "layers.{}.laurel_right.weight": f"{LAYER}laurel.linear_right.weight",
    "layers.{}.laurel_norm.weight": f"{LAYER}laurel.post_laurel_norm.weight",
    **{f"altup_spread_{number}.weight": f"model.altup_projections.{number}.weight" for number in range(STREAMS - 1)},
    **{
        f"altup_merge_{number}.weight": f"model.altup_unembed_projections.{number}.weight"
        for number in range(STREAMS - 1)
    },
}
# Layers that share keys and values of other layers have unused tensors of their own.
UNREAD_PROJECTIONS: Final = tuple(
    f"{prefix}layers.{{}}.self_attn.{name}.weight"
    for prefix in ("model.", "model.language_model.", "language_model.model.")
    for name in ("k_proj", "v_proj", "k_norm")
)


def with_text_model(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model, with one width in place of a list of equal widths."""
    values = with_rope_of_full_layers(values)
    widths = values.get(FFN_WIDTHS)
    is_same = isinstance(widths, list) and widths and widths == widths[:1] * len(widths)
    return values.with_changes({FFN_WIDTHS: widths[0]}) if widths and is_same else values


@register
class Gemma3nForCausalLM(HfSchema):
    """Gemma 3n's text model."""

    model_type = "gemma3n_text"
    architecture = Gemma3n
    keys = hf_keys(
        Key("per_layer_input_size", "hidden_size_per_layer_input", "u32", 1, MAX_WIDTH),
        Key("altup_num_inputs", "altup_num_inputs", "u32", STREAMS, STREAMS),
        Key("num_kv_shared_layers", "num_kv_shared_layers", "u32", 0, MAX_LAYERS, 0),
        Key("laurel_rank", "laurel_rank", "u32", 1, MAX_WIDTH),
        Key("per_layer_vocab", PER_LAYER_VOCAB, "u32", 1, MAX_VOCAB),
        OPTIONAL_LOGIT_CAP_KEY,
        LOCAL_THETA_KEY._replace(key="rope_local_base_freq"),
    )
    class_keys = {"sliding_window": "window"}
    defaults = {
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_size_per_layer_input": 256,
        "laurel_rank": 64,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "altup_num_inputs": 4,
        "rope_theta": 1e6,
        "final_logit_softcapping": 30.0,
        "num_kv_shared_layers": 15,
        PER_LAYER_VOCAB: 262144,
    }
    supported = {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "altup_active_idx": (0,),
        "altup_correct_scale": (True,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **AROUND_NORM_TENSORS,
        **PER_LAYER_INPUT_TENSORS,
        **ALTUP_TENSORS,
    }
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = (*UNREAD_PROJECTIONS, *MULTIMODAL_TENSORS)
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Gemma3nConfig:
        values = with_text_model(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Gemma3nConfig)
        config = with_checked_layers(with_windows(config, values, WINDOW_STEP, window=DEFAULT_WINDOW), values)
        shares = values.get(SPARSITY)
        shares = default_sparsity(config.layers) if shares is None else shares
        thresholds = thresholds_of_sparsity(values, SPARSITY, shares, config.layers)
        return replace(config, activation_thresholds=thresholds)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Gemma3nConfig)
        thresholds = config.activation_thresholds
        shares = [round(NormalDist().cdf(each), 6) if each > -inf else 0.0 for each in thresholds]
        return {SPARSITY: shares, PER_LAYER_VOCAB: config.per_layer_vocab}


@register
class Gemma3nForConditionalGeneration(Gemma3nForCausalLM):
    """The multimodal Gemma 3n."""

    model_type = "gemma3n"
