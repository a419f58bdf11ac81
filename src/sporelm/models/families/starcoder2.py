"""StarCoder2: layer norms and biases everywhere, rotary positions, a feed-forward block without a gate."""

from dataclasses import replace

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import window_of
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HF, NORM_BIASES, Kind, Names, changed

NAMES = changed(
    COMMON,
    *NORM_BIASES,
    *(
        Names(f"layers.{{}}.ffn_{ours}.{part}", f"blk.{{}}.ffn_{ours}.{part}", f"model.layers.{{}}.mlp.{hf}.{part}")
        for ours, hf in (("up", "c_fc"), ("down", "c_proj"))
        for part in ("weight", "bias")
    ),
)


def _windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, window=window_of(values, "sliding_window", None)) if kind == HF else config


@architecture(
    Family(
        "starcoder2",
        (
            HfClass(
                "Starcoder2ForCausalLM",
                "starcoder2",
                {"tie_word_embeddings": True, "num_key_value_heads": 2, "max_position_embeddings": 4096}
                | {"norm_epsilon": 1e-5},
                (("sliding_window", "window"),),
            ),
        ),
        fields(Field("eps", "attention.layer_norm_epsilon", "f32", "norm_epsilon")),
        NAMES,
        fixed={"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"hidden_act": ("gelu_pytorch_tanh",), "use_bias": (True,)},
        finish=_windowed,
        windowless=True,
    )
)
class StarCoder2(Decoder):
    """Norms in front, attention of grouped queries, GELU (Lozhkov et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)
