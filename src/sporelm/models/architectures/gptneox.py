"""GPT-NeoX-20B, Pythia, Dolly 2: attention and feed-forward block side by side, with a norm each."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.gelu_names import GELUS


@architecture("gptneox")
class GPTNeoX(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), or in turn; a part of each head is rotated (Black et al. 2022)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, GELUS[config.activation]), norm=self.norms)
