"""Folders of models that see or hear around a text model of a family that there is: which one, and what it is called.

Classes and what their config.json need not say: the configuration classes of transformers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sporelm.checkpoints.beside_vision import OTHERS, OUTER, without_images
from sporelm.checkpoints.config_values import shown
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import known_names
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.errors import UnsupportedModel

RESAVED = (("model.layers.", "language_model.model.blocks."),)  # Kimi K2.5, saved by transformers 5.23
TEXT_MODEL = "model.text_model."  # in front of the text model's names, where it is not "model.language_model."


class TextModel(NamedTuple):
    """The text model of a model_type: its class, and what counts where a config.json does not say it."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    more: Mapping[str, Any] = {}

    def defaults(self) -> dict[str, Any]:
        found = self._asdict()
        return {key: found[key] for key in found if key not in ("name", "more")} | dict(self.more)


_GLM: dict[str, Any] = {"partial_rotary_factor": 1.0, "attention_bias": True, "head_dim": None, "rms_norm_eps": 1e-5}
_GLM_DENSE, _GLM_MIXTURE = (_GLM | {"max_position_embeddings": positions} for positions in (32768, 65536))
TEXTS: Mapping[str, TextModel] = {
    "cohere": TextModel("CohereForCausalLM", 256000, 8192, 22528, 40, 64),
    "cohere2": TextModel("Cohere2ForCausalLM", 256000, 8192, 22528, 40, 64),
    "deepseek_v3": TextModel("DeepseekV3ForCausalLM", 129280, 7168, 18432, 61, 128),
    "exaone4": TextModel("Exaone4ForCausalLM", 102400, 4096, 16384, 32, 32),
    "glm4v_moe_text": TextModel("Glm4MoeForCausalLM", 151424, 4096, 10944, 46, 96, _GLM_MIXTURE),
    "glm4v_text": TextModel("Glm4ForCausalLM", 151552, 4096, 13696, 40, 32, _GLM_DENSE),
    "gpt_oss": TextModel("GptOssForCausalLM", 201088, 2880, 2880, 36, 64),
    "granite": TextModel("GraniteForCausalLM", 32000, 4096, 11008, 32, 32),
    "hyperclovax": TextModel("HyperCLOVAXForCausalLM", 32000, 4096, 11008, 32, 32),
    "lfm2": TextModel("Lfm2ForCausalLM", 65536, 2560, 12288, 32, 32),
    "lfm2_moe": TextModel("Lfm2MoeForCausalLM", 65536, 2048, 7168, 32, 32),
    "lfm3": TextModel("Lfm3ForCausalLM", 128000, 2048, 7680, 24, 16),
    "llama": TextModel("LlamaForCausalLM", 32000, 4096, 11008, 32, 32),
    "mistral": TextModel("MistralForCausalLM", 32000, 4096, 14336, 32, 32),
    "mistral4": TextModel("Mistral4ForCausalLM", 131072, 4096, 12288, 36, 32),
    "phi3": TextModel("Phi3ForCausalLM", 32064, 3072, 8192, 32, 32),
    "qwen2": TextModel("Qwen2ForCausalLM", 151936, 4096, 22016, 32, 32),
    "qwen3": TextModel("Qwen3ForCausalLM", 151936, 4096, 22016, 32, 32),
    "qwen3_moe": TextModel("Qwen3MoeForCausalLM", 151936, 2048, 6144, 24, 32),
    "step3p5": TextModel("Step3p5ForCausalLM", 128815, 4096, 11264, 45, 64),
}
# The class of a whole -> the model_type of its text model where config.json does not say it.
WHOLES: Mapping[str, str] = {
    "AudioFlamingo3ForConditionalGeneration": "qwen2",
    "AyaVisionForConditionalGeneration": "cohere2",
    "Cohere2VisionForConditionalGeneration": "cohere2",
    "DeepseekVLForConditionalGeneration": "llama",
    "Exaone4_5_ForConditionalGeneration": "exaone4",
    "Glm46VForConditionalGeneration": "glm4v_text",
    "Glm4vForConditionalGeneration": "glm4v_text",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe_text",
    "GotOcr2ForConditionalGeneration": "qwen2",
    "HCXVisionV2ForCausalLM": "hyperclovax",
    "HyperCLOVAXVisionV2ForConditionalGeneration": "hyperclovax",
    "Idefics2ForConditionalGeneration": "mistral",
    "Idefics3ForConditionalGeneration": "llama",
    "InternVLForConditionalGeneration": "qwen2",
    "Kimi_K25ForConditionalGeneration": "deepseek_v3",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "Lfm3VlForConditionalGeneration": "lfm3",
    "LightOnOcrForConditionalGeneration": "qwen3",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "LlavaNextVideoForConditionalGeneration": "llama",
    "LlavaOnevisionForConditionalGeneration": "qwen2",
    "Ovis2ForConditionalGeneration": "qwen2",
    "Qwen2AudioForConditionalGeneration": "qwen2",
    "Qwen3ASRForConditionalGeneration": "qwen3",
    "SmolVLMForConditionalGeneration": "llama",
    "Step3p7ForConditionalGeneration": "step3p5",
    "VideoLlama3ForConditionalGeneration": "qwen2",
    "VideoLlavaForConditionalGeneration": "llama",
    "VipLlavaForConditionalGeneration": "llama",
    "VoxtralForConditionalGeneration": "llama",
}
# Classes that are those of a family, and wholes around text models of these types besides.
BOTH: Mapping[str, tuple[str, ...]] = {"Mistral3ForConditionalGeneration": ("mistral4",)}
# Classes around a text model that computes otherwise than its family, and how.
REFUSED: Mapping[str, str] = {
    "Ernie4_5_VLMoeForConditionalGeneration": "its layers have experts of two kinds",
    "GraniteSpeechForConditionalGeneration": "its text model has an adapter for what it hears",
    "MllamaForConditionalGeneration": "some of its layers read images alone",
    "PaliGemmaForConditionalGeneration": "its text model sees a prompt both ways",
    "Qwen2_5OmniForConditionalGeneration": "it thinks with one text model and speaks with another",
    "Qwen3OmniMoeForConditionalGeneration": "it thinks with one text model and speaks with another",
}


def inner_of(whole: str) -> str:
    """What names of the text model have in front, in folders of a class of `WHOLES`."""
    if whole.startswith("Step3p7"):
        return "model."  # as its makers wrote them
    return TEXT_MODEL if whole.startswith(("Idefics", "SmolVLM")) else "model.language_model."


def whole_of(values: Mapping[str, Any]) -> str:
    """The class of `WHOLES`, or of `BOTH` around such a text model, that a config.json names; "" for any other."""
    named = values.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    if not isinstance(first, str):
        return ""
    text = values.get("text_config")
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    return first if first in WHOLES or kind in BOTH.get(first, ()) else ""


def text_values(values: dict[str, Any], where: str) -> dict[str, Any]:
    """A config.json; of a class of `WHOLES` as that of its text model alone.

    Raises UnsupportedModel for a class or a text model that there is not, naming it.
    """
    named = values.get("architectures")
    if isinstance(named, list) and named and (why := REFUSED.get(str(named[0]))):
        raise UnsupportedModel(f"{where}: {named[0]} is not supported: {why}")
    text = values.get("text_config")
    text = dict(text) if isinstance(text, Mapping) else {}
    if not (whole := whole_of(values)):
        if text and isinstance(named, list) and named and named[0] not in known_names():
            kind = shown(text.get("model_type"))
            what = f"{shown(named[0])}, a model around a text model of type {kind}, is not supported"
            raise UnsupportedModel(f"{where}: {what}; docs/models.md names those that are")
        return values
    kind = text.get("model_type", WHOLES.get(whole, ""))
    if not isinstance(kind, str) or kind not in TEXTS:
        known = ", ".join(TEXTS)
        raise UnsupportedModel(f"{where}: the text model of {whole} is of type {shown(kind)}; supported are {known}")
    outer = {key: values[key] for key in OUTER if key in values}
    told = {key: value for key, value in text.items() if value is not None or key not in TextModel._fields}
    return without_images(TEXTS[kind].defaults() | told | outer | {"architectures": [TEXTS[kind].name]})


def within_whole(schema: HfSchema, whole: str) -> HfSchema:
    """Return the schema of a text model for folders of a class of `WHOLES`: names have more in front."""
    front = "model.language_model."
    prefixes = (
        *TEXT_MODEL_PREFIXES,
        ("model.", inner_of(whole)),
        ("model.", f"{front}model."),  # HyperCLOVA X
        ("lm_head.", f"{front}lm_head."),
    )
    return schema.with_attributes(
        prefix_variants=(*schema.prefix_variants, *prefixes),
        ignored_tensors=(*schema.ignored_tensors, *OTHERS),
        resaved_names=(*schema.resaved_names, *(RESAVED if whole.startswith("Kimi_K25") else ())),
    )
