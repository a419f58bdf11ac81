"""Shared by tests of dialects: the dialects of the shared templates, and a tokenizer with given special tokens."""

from pathlib import Path
from typing import Any

from hf_folders import FLAGS, tokenizer_json, write_tokenizer
from sporelm.text import Tokenizer, load_tokenizer

# Chat templates in shared/data/templates: (dialect, opening marker of the reasoning).
TEMPLATES = {
    "GLM-4.6.jinja": ("glm", "<think>"),
    "HuggingFaceTB-SmolLM3-3B.jinja": ("generic", "<think>"),
    "Minueza-32M-UltraChat.jinja": ("generic", "<think>"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct.jinja": ("hermes", None),
    "Qwen-Qwen3-0.6B.jinja": ("hermes", "<think>"),
    "Qwen3-Coder.jinja": ("qwen_coder", None),
    "Qwen3.5-4B.jinja": ("qwen_coder", "<think>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": ("deepseek", "<think>"),
    "deepseek-ai-DeepSeek-V3.1.jinja": ("deepseek", "<think>"),
    "google-gemma-2-2b-it.jinja": ("gemma", None),
    "ibm-granite-granite-3.3-2B-Instruct.jinja": ("granite", "<think>"),
    "meta-llama-Llama-3.1-8B-Instruct.jinja": ("llama3", None),
    "meta-llama-Llama-3.2-3B-Instruct.jinja": ("llama3", None),
    "microsoft-Phi-3.5-mini-instruct.jinja": ("generic", "<think>"),
    "mistralai-Mistral-Nemo-Instruct-2407.jinja": ("mistral", None),
    "openai-gpt-oss-120b.jinja": ("harmony", None),
    "openbmb-MiniCPM5-1B.jinja": ("minicpm", "<think>"),
}


def marker_tokenizer(folder: Path, markers: tuple[str, ...] = ()) -> Tokenizer:
    """Return a tokenizer with a token for each byte and a special token for each marker."""
    spec: dict[str, Any] = tokenizer_json(300)
    for marker in dict.fromkeys(markers):
        token = len(spec["model"]["vocab"])
        spec["model"]["vocab"][marker] = token
        spec["added_tokens"].append({"id": token, "content": marker, "special": True} | FLAGS)
    write_tokenizer(folder, spec)
    return load_tokenizer(folder)
