"""GGUF files of EuroBERT."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema, as_encoder_config
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PARTS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.eurobert import EuroBert
from sporelm.models.config import ModelConfig


@register
class EuroBertGguf(EncoderGgufSchema):
    """`eurobert`."""

    names = ("eurobert",)
    architecture = EuroBert
    keys = gguf_keys(without=("window",))
    tensors = {
        **{name: row for name, row in DECODER_TENSORS.items() if name != "output.weight"},
        **{f"classifier_dense.{part}": f"cls.{part}" for part in PARTS},
        **{f"classifier.{part}": f"cls.output.{part}" for part in PARTS},
    }

    def find_unsupported(self, config: ModelConfig) -> str:
        return "it has a head" if as_encoder_config(config).head_labels else ""
