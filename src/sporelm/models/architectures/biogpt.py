"""BioGPT: OPT's layer with GELU, and an embedding scaled by its width."""

from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.gpt2 import GPT2
from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.gelu_names import GELUS

ACTIVATIONS: Final = {**GELUS, "relu": "relu"}


@architecture("biogpt")
class BioGPT(GPT2):
    """The sum of token and position embeddings, pre-norm attention, a feed-forward block (Luo et al. 2022)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        mlp = MLP(f"layers.{index}", config, ACTIVATIONS[config.activation])
        return pre_norm(config, index, mlp=mlp, norm=self.norms)
