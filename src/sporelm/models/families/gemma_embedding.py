"""EmbeddingGemma: Gemma 3's layer as an encoder; its vectors go through two dense layers once they are pooled."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.dense import dense_of_shapes, fitting
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import bare
from sporelm.checkpoints.windows import every
from sporelm.models.blocks import EncoderAttention, EncoderLayer, GatedMLP, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.families.gemma2 import scalar, unscaled
from sporelm.models.families.gemma3 import LOCAL_THETA, NAMES, NUMBERS, STEP, gemma3_config, reworded
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TextFacts, said

PARTS = ("attn", "ffn", "attn_post", "ffn_post")  # of a layer, each with a norm


def _noticed(config: ModelConfig, metadata: Any, shapes: Any) -> ModelConfig:
    return replace(config, dense=fitting(dense_of_shapes(shapes, config.name), config.width, config.name))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    found = said(config, "gemma-embedding")
    for layer in config.dense:
        key = f"gemma-embedding.{layer.name}_feat"
        found |= {f"{key}_in": ("u32", layer.width), f"{key}_out": ("u32", layer.out)}
    return found


@architecture(
    Family(
        "gemma-embedding",
        (HfClass("Gemma3TextModel", "gemma3_text", NUMBERS, (("sliding_window", "window"),)),),
        fields(
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_base_freq", 1.0, MOST_THETA, LOCAL_THETA),
        ),
        bare(NAMES),
        only={
            "use_bidirectional_attention": (True,),
            "hidden_activation": ("gelu_pytorch_tanh",),
            "attention_bias": (False,),
            "attn_logit_softcapping": (None,),
        },
        finish=gemma3_config,
        noticed=_noticed,
        said=_said,
        reworded=lambda values: {"use_bidirectional_attention": False} | reworded(values),
        full_layers=every(STEP),
        tells_layers=True,
        words=scalar,
        unsaid=lambda config: unscaled(config, 0),
        dense=True,
        fronts=("model.",),
        own=TextFacts,
        reads=True,
    )
)
class GemmaEmbedding(Encoder):
    """Gemma 3's layer whose rows see both ways, so many places before as behind (Schechter Vera et al. 2025)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name, window = f"layers.{index}", config.window_of(index)
        attention = EncoderAttention(name, config, None if window is None else window // 2, normed=True)
        first, second, third, fourth = (self.norm(f"{name}.{part}_norm") for part in PARTS)
        mlp = GatedMLP(name, config, "gelu_tanh")
        return EncoderLayer(first, attention, second, mlp, post=False, behind=(third, fourth))
