"""The classes that transformers has and this package reads, and a small configuration of each to start from."""

from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from config_draws.fields import SKIPPED, WITHOUT_MEANING
from families import EVERY, WHOLE
from sporelm.checkpoints.multimodal_text import MULTIMODAL_CLASSES
from sporelm.checkpoints.supported_models import MODELS

# Class -> class whose base configuration it has too, where the families' test cases have none of its own.
LIKE = {
    "AlbertForMaskedLM": "AlbertModel",
    "AlbertForPreTraining": "AlbertModel",
    "BertForMaskedLM": "BertModel",
    "BertForPreTraining": "BertModel",
    "CamembertForMaskedLM": "CamembertModel",
    "DebertaV2ForMaskedLM": "DebertaV2Model",
    "DistilBertForMaskedLM": "DistilBertModel",
    "ElectraForMaskedLM": "ElectraModel",
    "ElectraForPreTraining": "ElectraModel",
    "ErnieForMaskedLM": "ErnieModel",
    "ErnieForPreTraining": "ErnieModel",
    "EuroBertForMaskedLM": "EuroBertModel",
    "GteForMaskedLM": "GteModel",
    "JinaEmbeddingsV3ForMaskedLM": "JinaEmbeddingsV3Model",
    "MPNetForMaskedLM": "MPNetModel",
    "MistralForCausalLM": "LlamaForCausalLM",
    "MegatronBertForMaskedLM": "MegatronBertModel",
    "ModernBertForMaskedLM": "ModernBertModel",
    "NomicBertForMaskedLM": "NomicBertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForMaskedLM": "XLMRobertaModel",
    "XLMRobertaXLForMaskedLM": "XLMRobertaXLModel",
}
# A class with a tower that sees, whose text model alone is compared -> the class with the text model's configuration.
SEEING = {
    "CohereCompassForConditionalGeneration": "CohereCompassForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4UnifiedForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "Ministral3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
TOWER = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "image_size": 28}
TOWER |= {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
TOWER |= {"mm_embed_dim": 16, "num_soft_tokens": 4, "position_embedding_size": 16}
TOWER |= {"patch_size": 14, "num_attention_heads": 2, "num_heads": 2, "deepstack_visual_indexes": []}


@cache
def bases() -> dict[str, list[dict[str, Any]]]:
    """Small configurations that work, by class: those of the families' test cases."""
    import transformers

    found: dict[str, list[dict[str, Any]]] = {}
    for case in (*EVERY, *WHOLE):
        name = case.config["architectures"][0]
        if not case.numpy and hasattr(transformers, name):
            found.setdefault(name, []).append(case.config)
    for name, other in LIKE.items():
        found.setdefault(name, []).extend(found.get(other, []))
    for name, other in SEEING.items():
        kind = getattr(transformers, name).config_class
        found.setdefault(name, []).extend(_seeing(kind, config) for config in found.get(other, []))
    return {name: configs for name, configs in found.items() if configs}


def _seeing(kind: Any, text: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a class with towers around a text model, as small as its classes allow."""
    inner = {key: value for key, value in text.items() if key != "architectures"}
    outer: dict[str, Any] = {"model_type": kind.model_type, "text_config": inner}
    outer["tie_word_embeddings"] = inner.pop("tie_word_embeddings", False)
    for name, specs in kind.sub_configs_defaults.items():
        if name != "text_config":
            part = specs.config_class
            part = specs.get_config_class(specs.model_type) if part.__name__ == "AutoConfig" else part
            known = {each.name for each in fields(part)}
            outer[name] = {key: value for key, value in TOWER.items() if key in known} | {"model_type": part.model_type}
            outer[name] |= {"out_hidden_size": inner["hidden_size"]} if "out_hidden_size" in known else {}
    return outer


def classes() -> list[str]:
    """The classes that transformers has and this package reads."""
    import transformers

    names = {name for family in MODELS for name in family.names[1:]} | set(MULTIMODAL_CLASSES)
    return sorted(name for name in names if hasattr(transformers, name))


def text_class(outer: Any, inner: dict[str, Any]) -> Any:
    """The configuration class of the text model in a configuration of the class `outer`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    declared = outer.sub_configs.get("text_config")
    if declared is not None and declared.__name__ != "AutoConfig":
        return declared
    kind = inner.get("model_type") or outer.sub_configs_defaults["text_config"].model_type
    return CONFIG_MAPPING[kind]


def is_encoder(name: str) -> bool:
    """Whether the package computes embeddings or scores with a class, not logits of the next token."""
    family = next((each for each in MODELS if name in each.names), None)
    return family is not None and "encoder" in family.title.lower()


def class_defaults() -> dict[str, dict[str, Any]]:
    """By the name of a text model's configuration class: its model_type, the classes that have it, what it takes for
    absent keys, and its second names of keys."""
    import transformers

    found: dict[str, dict[str, Any]] = {}
    for name in classes():
        if name not in bases():
            continue
        kind, base = getattr(transformers, name).config_class, bases()[name][0]
        text = text_class(kind, base["text_config"]) if isinstance(base.get("text_config"), dict) else kind
        known = {}
        for each in fields(text):
            value = each.default_factory() if each.default_factory is not MISSING else each.default
            plain = isinstance(value, bool | int | float | str | list | dict | None)
            if plain and each.name not in SKIPPED | WITHOUT_MEANING and not each.name.startswith("_"):
                known[each.name] = value
        said = found.setdefault(text.__name__, {"model_type": text.model_type.removesuffix("_text"), "classes": []})
        said["classes"].append(name)
        said |= {"defaults": known, "aliases": dict(text.attribute_map)}
    return found
