"""A tiny model of a family: its configuration, random weights, and the reference for its logits.

Needs sporelm and numpy alone, so that `make_family_goldens.py` can import it where transformers is.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.multimodal_text import find_multimodal_class, find_text_prefix
from sporelm.checkpoints.schema_registry import find_hf_schema, gguf_schema_for
from sporelm.models import Decoder, Encoder, build
from sporelm.models.params import Param
from tiny_models import LLAMA

TOKENS = 70  # more than a page
POSITIONS = (0, 1, 2, 7, 20, 41, 63, 64, 69)  # whose logits the goldens hold
SPECIAL = 5  # ids at the beginning that prompts of encoders do without: RoBERTa's positions leave out its padding
SECOND = 41  # where the second of two texts begins


@dataclass(frozen=True)
class Case:
    """A configuration as in config.json, and the reference for its logits.

    wide   what changes for llama.cpp, whose K-quants want rows of whole blocks of 256; None: this case is not compared
    numpy  the reference is tests/models/paper/NAME.py, for what transformers lacks; else transformers' golden file
    reads  it is an encoder: what it makes of tokens, or the scores of its head, are compared in place of logits
    """

    name: str
    config: dict[str, Any]
    wide: dict[str, Any] | None = field(default_factory=lambda: WIDE)
    numpy: str = ""
    reads: bool = False

    @cached_property
    def model(self) -> Decoder | Encoder:
        return build(config_from_hf(self.config, "config.json"))

    @cached_property
    def schema(self) -> HfSchema:
        """The schema of its folders, or of its text model's."""
        return find_hf_schema(self.model.config.architecture)

    @property
    def gguf_schema(self) -> GgufSchema:
        """The schema of the GGUF files that its folders are converted to."""
        return gguf_schema_for(self.schema)

    def stored(self, schema: GgufSchema | HfSchema, *names: str) -> dict[str, np.ndarray]:
        """The weights as files of a schema store them: in the alternatives that files with these names have."""
        return schema.for_file(names).resolve(self.model.params(), self.model.config).save(self.weights())

    @property
    def family(self) -> str:
        """The name of the module of its schemas."""
        return self.schema.module

    def ids(self) -> list[int]:
        """The prompt."""
        lowest = SPECIAL if self.reads else 0
        return _random(self.name).randint(lowest, self.model.config.vocab, TOKENS).tolist()

    def types(self) -> list[int]:
        """Of an encoder's prompt: which of two texts each token is of."""
        two = isinstance(self.model, Encoder) and self.model.config.token_types > 1
        return [int(two and place >= SECOND) for place in range(TOKENS)]

    def weights(self) -> dict[str, np.ndarray]:
        """float32 weights by our names: those of matrices uniform, so that every row keeps a variance near one."""
        return {param.name: _values(f"{self.name} {param.name}", param) for param in self.model.params()}

    def tensors(self) -> dict[str, np.ndarray]:
        """The same as a Hugging Face folder holds them."""
        model, whole = self.model, find_multimodal_class(self.config)
        stored = self.schema.resolve(model.params(), model.config).save(self.weights())
        inner = find_text_prefix(whole) if whole else "model."
        names = {name: inner + name.removeprefix("model.") if name.startswith("model.") else name for name in stored}
        return {names[name]: values for name, values in stored.items()}

    def widened(self) -> "Case":
        """The model for llama.cpp: with enough tokens for all bytes."""
        assert self.wide is not None
        return replace(self, name=f"{self.name}-wide", config=changed(self.config, **self.wide, vocab_size=320))


def changed(config: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A config.json with other values, in its text model's part if it has one."""
    inner = config.get("text_config")
    return config | ({"text_config": inner | values} if inner else values)


def _random(name: str) -> np.random.RandomState:
    """numpy's frozen legacy generator, seeded with a name."""
    return np.random.RandomState(crc32(name.encode()))


def _values(name: str, param: Param) -> np.ndarray:
    random, shape = _random(name), param.shape
    if len(shape) == 1 or param.name.endswith(".decay"):
        centre = 0.0 if param.name.endswith(".bias") else 1.0
        sign = -1 if param.name.endswith(".decay") else 1
        return (sign * (centre + 0.4 * (random.random_sample(shape) - 0.5))).astype(np.float32)
    factor = 2.0 if param.name == "embedding.weight" else 1.0
    terms = shape[0] if param.name.endswith("_conv.weight") else shape[-1]
    return ((random.random_sample(shape) * 2 - 1) * factor * np.sqrt(3 / terms)).astype(np.float32)


def write_case(folder: Path, case: Case) -> Path:
    """A Hugging Face folder of the model, without a tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    save_file(case.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


OF_LLAMA = ("architectures", "model_type", "hidden_act", "bos_token_id", "eos_token_id")
SHAPE: dict[str, Any] = {key: value for key, value in LLAMA.items() if key not in OF_LLAMA}
ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1}  # heads of 10
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
TIED: dict[str, Any] = {"tie_word_embeddings": True}


def named(name: str, model_type: str, **values: Any) -> dict[str, Any]:
    """The start of a config.json."""
    return {"architectures": [name], "model_type": model_type, **SHAPE, **values}
