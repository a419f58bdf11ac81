"""Preprocessing of texts to embed: the prompts of config_sentence_transformers.json, and do_lower_case and
max_seq_length of sentence_bert_config.json.

GGUF files have no keys for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.pooling import find_pooling_configs
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel, safe_repr
from sporelm.files.json_object import read_object

PROMPTS_FILE, SENTENCE_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"


class Prompts(NamedTuple):
    """The prompts of an embedding model, and how its texts are prepared.

    texts            by name
    default          name of the prompt before a text for which no prompt is requested; None: there is none
    is_lowercased    texts are converted to lower case
    max_seq_length   tokens after which sentence-transformers truncates a text, special tokens included; 0: the context
    unpooled_in      the file that excludes the rows of a prompt from pooling; "": they are pooled
    """

    texts: Mapping[str, str] = {}
    default: str | None = None
    is_lowercased: bool = False
    max_seq_length: int = 0
    unpooled_in: str = ""

    def find_prompt(self, name: str | None) -> str:
        """Return the prompt of a name; that of None is the default, that of "" is empty.

        Raises RequestError for an unknown name, UnsupportedModel for a prompt that is excluded from pooling.
        """
        name = self.default or "" if name is None else name
        if isinstance(name, str) and (name in self.texts or name == ""):
            if (text := self.texts.get(name, "")) and self.unpooled_in:
                raise UnsupportedModel(
                    f"{self.unpooled_in}: include_prompt False is not supported for prompts; True is"
                )
            return text
        known = f"it is one of {', '.join(sorted(self.texts))}" if self.texts else "this model's files have no prompts"
        raise RequestError(f"prompt_name is {safe_repr(name)}: {known}")


def read_prompts(path: Path) -> Prompts:
    """Return the prompts of a model's folder; none for a file. Raises ModelFileError for damaged files."""
    prompts_path, sentence_path = path / PROMPTS_FILE, path / SENTENCE_FILE
    settings = ConfigValues(read_object(sentence_path) if sentence_path.is_file() else {}, str(sentence_path))
    is_lowercased = settings.flag("do_lower_case", False)
    max_seq_length = settings.integer("max_seq_length", 1, MAX_CONTEXT) if settings.has("max_seq_length") else 0
    if not prompts_path.is_file():
        return Prompts(is_lowercased=is_lowercased, max_seq_length=max_seq_length)
    values = read_object(prompts_path)
    texts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ModelFileError(f"{prompts_path}: prompts is {safe_repr(texts)}; it must be an object of texts")
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise ModelFileError(
            f"{prompts_path}: default_prompt_name is {safe_repr(default)}, which is not one of its prompts"
        )
    unpooled_in = [str(each) for each in find_pooling_configs(path) if read_object(each).get("include_prompt") is False]
    return Prompts(texts, default, is_lowercased, max_seq_length, unpooled_in[0] if unpooled_in else "")


def find_prompts_lost_in_gguf(path: Path) -> tuple[str, ...]:
    """Return the settings of a folder that a GGUF file cannot hold, one line each. Raises as `read_prompts`."""
    prompts = read_prompts(path)
    names = sorted(name for name, text in prompts.texts.items() if text)
    found = [f"a GGUF file cannot hold prompts ({', '.join(names)}): prepend them to texts yourself"] if names else []
    return (
        *found,
        *(
            ["a GGUF file cannot hold do_lower_case: convert texts to lower case yourself"]
            if prompts.is_lowercased
            else []
        ),
    )
