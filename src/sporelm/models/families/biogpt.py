"""BioGPT: OPT's layer with GELU, and an embedding scaled by its width."""

from dataclasses import replace

from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.families.gpt2 import FIXED, GPT2
from sporelm.models.families.opt_names import opt_names
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import GELUS, Family, Field, HfClass, activation, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind, Names, changed

EPS = 1e-5  # of its norms, whatever config.json says
NAMES = changed(opt_names("biogpt.", "layer_norm"), Names("output.weight", "output.weight", "output_projection.weight"))
SCALED = Field("scales.embedding", "embedding_scale", "f32", "", 1e-6, 1e6, 1.0)
KINDS = {**GELUS, "relu": "relu"}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """A flag of config.json says whether the embedding is scaled."""
    if kind == HF and values.flag("scale_embedding", True):
        config = replace(config, scales=replace(config.scales, embedding=config.width**0.5))
    return replace(config, eps=EPS)


def words(config: ModelConfig) -> dict[str, bool]:
    return {"scale_embedding": config.scales.embedding != 1}


@architecture(
    Family(
        "biogpt",
        (HfClass("BioGptForCausalLM", "biogpt", {"tie_word_embeddings": True, "max_position_embeddings": 1024}),),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", ""),
            activation("hidden_act", "gelu", KINDS),
            SCALED,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed=FIXED,
        only={},
        finish=finished,
        words=words,
    )
)
class BioGPT(GPT2):
    """Rows of tokens and of positions added, then attention and a feed-forward block (Luo et al. 2022)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, KINDS[config.activation]), norm=self.norms)
