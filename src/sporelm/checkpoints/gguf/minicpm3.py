"""GGUF files of MiniCPM3."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.minicpm import with_scales_of_2b
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf.minicpm import depth_scale_json
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema, get_latent
from sporelm.checkpoints.latent_tensors import KV_B_GGUF_TENSORS, LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.minicpm3 import MiniCPM3
from sporelm.models.config import ModelConfig

# llama.cpp's constant scales, by their keys in config.json.
MINICPM3_SCALES: Final = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}


@register
class MiniCpm3Gguf(LatentGgufSchema):
    """`minicpm3`. Files do not contain the scales."""

    names = ("minicpm3",)
    architecture = MiniCPM3
    keys = gguf_keys(*LATENT_GGUF_KEYS, without=("window",))
    tensors = DECODER_TENSORS | LATENT_GGUF_TENSORS | KV_B_GGUF_TENSORS
    has_latent_widths = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_scales_of_2b(super().config_from_metadata(gguf, values))

    def find_unsupported(self, config: ModelConfig) -> str:
        if not get_latent(config).q_lora_rank:
            return "its queries have no latent"
        found = {"scale_emb": config.scales.embedding, **depth_scale_json(config)}
        for key, value in MINICPM3_SCALES.items():
            if abs(found[key] - value) > 1e-4 * value:
                return f"its {key} is not {value:g}"
        return super().find_unsupported(config)
