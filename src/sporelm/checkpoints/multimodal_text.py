"""Folders of multimodal models around a supported text model: the class of the text model and the names of its tensors.

Classes and defaults of config.json: the configuration classes of transformers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import format_value
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import known_names
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, OUTER_KEYS, lift_image_rope_keys
from sporelm.errors import UnsupportedModel

RESAVED = (("model.layers.", "language_model.model.blocks."),)  # Kimi K2.5, saved by transformers 5.23
TEXT_MODEL = (
    "model.text_model."  # prefix of the text model's names in some folders, in place of "model.language_model."
)


class TextModel(NamedTuple):
    """The text model of a model_type: its class, and defaults for keys that a config.json lacks."""

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
TEXT_MODELS: Mapping[str, TextModel] = {
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
# Multimodal class -> the model_type of its text model, where config.json lacks it.
MULTIMODAL_CLASSES: Mapping[str, str] = {
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
# Multimodal classes whose text model has a config.json of its own, under this key.
INTERNVL_CHAT = "InternVLChatModel"
LLM_CONFIG = "llm_config"
NESTED_CLASSES: Mapping[str, str] = {INTERNVL_CHAT: LLM_CONFIG}
# Multimodal classes whose config.json is that of the text model, with further keys: version -> the text model's type.
MINICPM_CLASSES = ("MiniCPMO", "MiniCPMV")
MINICPM_TEXT_TYPES: Mapping[str, str] = {"2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
MINICPM_KEYS = ("vision_config", "slice_config", "audio_config", "tts_config", "auto_map", "model_type")
# Classes that have a schema, and that contain text models of these other types too.
MORE_TEXT_TYPES: Mapping[str, tuple[str, ...]] = {"Mistral3ForConditionalGeneration": ("mistral4",)}
# Classes with a text model that differs from the supported one, and the difference.
UNSUPPORTED_CLASSES: Mapping[str, str] = {
    "Ernie4_5_VLMoeForConditionalGeneration": "its layers have experts of two kinds",
    "GraniteSpeechForConditionalGeneration": "its text model has an adapter for audio",
    "MllamaForConditionalGeneration": "some of its layers attend to images only",
    "PaliGemmaForConditionalGeneration": "its text model attends to a prompt bidirectionally",
    "Qwen2_5OmniForConditionalGeneration": "it has two text models, a thinker and a talker",
    "Qwen3OmniMoeForConditionalGeneration": "it has two text models, a thinker and a talker",
}


def find_text_prefix(class_name: str) -> str:
    """Return the prefix of the text model's names in folders of a class of `MULTIMODAL_CLASSES`."""
    if class_name.startswith("Step3p7"):
        return "model."  # as published
    return TEXT_MODEL if class_name.startswith(("Idefics", "SmolVLM")) else "model.language_model."


def find_multimodal_class(values: Mapping[str, Any]) -> str:
    """Return the multimodal class that a config.json names, if it is one of `MULTIMODAL_CLASSES`, `NESTED_CLASSES`,
    `MINICPM_CLASSES` or `MORE_TEXT_TYPES`; else ""."""
    names = values.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        return ""
    text = values.get("text_config")
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    known = (*MULTIMODAL_CLASSES, *NESTED_CLASSES, *MINICPM_CLASSES)
    return first if first in known or kind in MORE_TEXT_TYPES.get(first, ()) else ""


def minicpm_version(values: Mapping[str, Any]) -> str:
    """Return the version in a config.json of `MINICPM_CLASSES`, which is a number or text, such as "2.6"; "" if it has
    none."""
    version = values.get("version")
    if isinstance(version, bool) or not isinstance(version, str | int | float):
        return ""
    try:
        return f"{float(version):.1f}"
    except (ValueError, OverflowError):
        return ""


def select_text_model(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a config.json; of a multimodal class as that of its text model alone.

    Raises UnsupportedModel with the name of an unsupported class or text model.
    """
    names = values.get("architectures")
    if isinstance(names, list) and names and (reason := UNSUPPORTED_CLASSES.get(str(names[0]))):
        raise UnsupportedModel(f"{where}: {names[0]} is not supported: {reason}")
    text = values.get("text_config")
    text = dict(text) if isinstance(text, Mapping) else {}
    if not (class_name := find_multimodal_class(values)):
        if text and isinstance(names, list) and names and names[0] not in known_names():
            kind = format_value(text.get("model_type"))
            what = f"{format_value(names[0])}, with a text model of type {kind}, is not supported"
            raise UnsupportedModel(f"{where}: {what}; docs/models.md lists the supported ones")
        return values
    if class_name in NESTED_CLASSES:
        return _select_nested(values, NESTED_CLASSES[class_name], where)
    if class_name in MINICPM_CLASSES:
        text = {key: value for key, value in values.items() if key not in MINICPM_KEYS}
        text["model_type"] = MINICPM_TEXT_TYPES.get(minicpm_version(values))
        if text["model_type"] is None:
            got, known = format_value(values.get("version")), ", ".join(MINICPM_TEXT_TYPES)
            raise UnsupportedModel(f"{where}: version of {class_name} is not supported (got {got}; allowed {known})")
    kind = text.get("model_type", MULTIMODAL_CLASSES.get(class_name, ""))
    if not isinstance(kind, str) or kind not in TEXT_MODELS:
        known = ", ".join(TEXT_MODELS)
        raise UnsupportedModel(
            f"{where}: text model of {class_name}: type {format_value(kind)} is not supported; {known} are"
        )
    outer = {key: values[key] for key in OUTER_KEYS if key in values}
    given = {key: value for key, value in text.items() if value is not None or key not in TextModel._fields}
    return lift_image_rope_keys(
        TEXT_MODELS[kind].defaults() | given | outer | {"architectures": [TEXT_MODELS[kind].name]}
    )


def _select_nested(values: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return the config.json of the text model under a key. Raises UnsupportedModel if it is absent or of another
    multimodal class."""
    text = values.get(key)
    text = dict(text) if isinstance(text, Mapping) else {}
    names = text.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in known_names() or isinstance(text.get("text_config"), Mapping):
        raise UnsupportedModel(
            f"{where}: the text model of {values['architectures'][0]} is not supported (its class in {key} is"
            f" {format_value(name)}); docs/models.md lists the supported ones"
        )
    return text | {each: values[each] for each in ("quantization_config",) if each in values}


def with_multimodal_names(schema: HfSchema, class_name: str) -> HfSchema:
    """Return the schema of a text model for folders of a multimodal class, which have other prefixes."""
    if class_name in NESTED_CLASSES or class_name in MINICPM_CLASSES:
        front = "llm." if class_name in MINICPM_CLASSES else "language_model."
        return schema.with_attributes(
            optional_prefixes=(*schema.optional_prefixes, front),
            ignored_tensors=(*schema.ignored_tensors, *MULTIMODAL_TENSORS),
        )
    front = "model.language_model."
    prefixes = (
        *TEXT_MODEL_PREFIXES,
        ("model.", find_text_prefix(class_name)),
        ("model.", f"{front}model."),  # HyperCLOVA X
        ("lm_head.", f"{front}lm_head."),
    )
    return schema.with_attributes(
        prefix_variants=(*schema.prefix_variants, *prefixes),
        ignored_tensors=(*schema.ignored_tensors, *MULTIMODAL_TENSORS),
        resaved_names=(*schema.resaved_names, *(RESAVED if class_name.startswith("Kimi_K25") else ())),
    )
