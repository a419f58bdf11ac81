"""The small JSON files beside the tokenizer in a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.text.error_summary import summarize_error

MAX_TOKENIZER_BYTES = 512 << 20
MAX_SMALL_FILE_BYTES = 16 << 20
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Usual file names of a SentencePiece model.
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")


class TokenizerFolder:
    """The checked contents of one folder's small JSON files. A file that is absent counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self.read_json("tokenizer_config.json")
        self.special_map = self.read_json("special_tokens_map.json")
        self.generation = self.read_json("generation_config.json")
        self.model = self.read_json("config.json")

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            value = json.loads(read_limited_bytes(path, MAX_SMALL_FILE_BYTES))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} is not JSON: {summarize_error(error)}") from None
        if not isinstance(value, dict):
            raise ModelFileError(f"{path} holds a {type(value).__name__}, not an object")
        return value

    def read_names(self) -> dict[str, str]:
        """Return "bos_token", "eos_token", ... -> text; tokenizer_config.json overrides special_tokens_map.json."""
        names: dict[str, str] = {}
        for name in _TOKEN_NAMES:
            value = self.config[name] if name in self.config else self.special_map.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if value is None:
                continue
            if not isinstance(value, str):
                raise ModelFileError(f"{self.path}: {name} is a {type(value).__name__}, not a string")
            names[name] = value
        return names

    def read_ids(self, name: str) -> list[int]:
        """Return the ids that generation_config.json, or else config.json, gives for `name`: one, several or none.
        Multimodal models may give them in the configuration of their text model only."""
        inner = [self.model.get(key) for key in ("text_config", "llm_config")]
        sources = (self.generation, self.model, *(each for each in inner if isinstance(each, dict)))
        value = next((source[name] for source in sources if source.get(name) is not None), None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for token in values:
            if type(token) is not int or token < 0:
                raise ModelFileError(f"{self.path}: {name} is not a token id (got {token!r:.60})")
        return values

    def read_flag(self, name: str) -> bool | None:
        """Return a boolean of tokenizer_config.json; None if it is absent."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(f"{self.path}: {name} is {value!r:.60}, not true or false")
        return value

    def read_chat_templates(self) -> dict[str, str]:
        """Return name -> source; chat_template.jinja and additional_chat_templates/*.jinja override the JSON.

        Older folders of models that see have the template of their processor in chat_template.json.
        """
        value = self.config.get("chat_template")
        templates: dict[str, str] = {}
        if isinstance(value, str):
            templates["default"] = value
        elif isinstance(value, list):
            for entry in value:
                if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
                    raise ModelFileError(f"{self.path}: an entry of chat_template has no name")
                if not isinstance(entry.get("template"), str):
                    raise ModelFileError(f"{self.path}: the chat template {entry['name'][:60]!r} is not a string")
                templates[entry["name"]] = entry["template"]
        elif value is not None:
            raise ModelFileError(f"{self.path}: chat_template is a {type(value).__name__}, not a string")
        of_processor = self.read_json("chat_template.json").get("chat_template")
        if isinstance(of_processor, str):
            templates["default"] = of_processor
        for path in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = _read_text(path)
        if (path := self.path / "chat_template.jinja").is_file():
            templates["default"] = _read_text(path)
        return templates


def read_limited_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a file. Raises ModelFileError for more than `max_bytes`."""
    size = path.stat().st_size
    if size > max_bytes:
        raise ModelFileError(f"{path}: file is too large (got {size} bytes; allowed {max_bytes})")
    return path.read_bytes()


def _read_text(path: Path) -> str:
    try:
        return read_limited_bytes(path, MAX_SMALL_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ModelFileError(f"{path} is not UTF-8") from None
