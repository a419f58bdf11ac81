"""StarCoder 1, SantaCoder: GPT-2 with one head of keys and values."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.gpt2 import GPT2
from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.gelu_names import GELUS


@architecture("starcoder")
class StarCoder(GPT2):
    """All queries share a head of keys and values (Li et al. 2023; Shazeer 2019)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, GELUS[config.activation]), norm=self.norms)
