"""Adapters in the folders that Hugging Face's PEFT writes: adapter_config.json and adapter_model.safetensors.

Tensors: base_model.model.MODULE.lora_A.weight [rank, in] and .lora_B.weight [out, rank]. Modules are named as those of
transformers, which of some families are not as the tensors in folders; both names are known. The scale is
lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (Kalajdzievski 2023); rank_pattern and alpha_pattern give other
values to modules whose names end with theirs. fan_in_fan_out says how the weight lies, which A and B do not follow.
"""

import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.config_values import shown as shown_value
from sporelm.checkpoints.lora.adapter import Adapter, Base, Pair, assemble, match_pairs, no_such_weight
from sporelm.checkpoints.lora.stored_matrix import StoredMatrix
from sporelm.checkpoints.tensor_names import HF, listed
from sporelm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import SafetensorsFiles, open_safetensors
from sporelm.files.tensor_messages import quote
from sporelm.ops.add_lora import MAX_RANK

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_ALPHA = 1e6
MAX_PATTERNS = 1 << 14
FLOATS = ("F32", "F16", "BF16")
PREFIX = "base_model.model."

# What changes the result in a way that matrices of low rank do not tell.
REFUSED = {
    "use_dora": "DoRA changes the weights' lengths too",
    "lora_bias": "it trains biases beside the matrices",
    "modules_to_save": "it comes with whole trained modules",
    "trainable_token_indices": "it comes with trained embeddings",
    "layer_replication": "it repeats layers of the model",
    "use_qalora": "QA-LoRA pools the columns of x",
    "alora_invocation_tokens": "it begins to act at certain tokens (aLoRA)",
    "target_parameters": "it adds to parameters that are no matrices of layers",
    "arrow_config": "Arrow chooses among several adapters",
}
# What says nothing of the result once the matrices are there.
HARMLESS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config"),
        *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
        *("layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"),
        "task_type",
    }
)
READ = frozenset(("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"))
# Beginnings of A and B that leave the model's own weights as they are.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")

_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")


class LoraScaling(NamedTuple):
    """Rank and alpha of each module, as the configuration gives them."""

    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return _of_pattern(self.ranks, module, self.rank)

    def of(self, module: str) -> float:
        """What the product of A and B is multiplied by."""
        rank = self.rank_of(module)
        return _of_pattern(self.alphas, module, self.alpha) / (sqrt(rank) if self.by_root else rank)


def read_peft(folder: Path, base: Base, scale: float) -> Adapter:
    """The adapter in a folder. Raises as `read_adapter`."""
    scales = _scales(ConfigValues(read_object(folder / CONFIG), str(folder / CONFIG)))
    path = folder / WEIGHTS
    if not path.exists():
        if (folder / PICKLED).exists():
            raise UnsupportedModel(
                f"{folder / PICKLED} is a pickle, which may run code when it is opened, and is not read: "
                f"save the adapter again with PEFT's save_pretrained, which writes {WEIGHTS}"
            )
        raise ModelNotFound(f"{folder} has no {WEIGHTS}: it is no adapter, or is not complete")
    with open_safetensors(path) as files:
        modules: dict[str, str] = {}
        known = base.stored_matrices(HF)
        pairs = _pairs(path, files, base, known, modules)
        for name, pair in pairs.items():
            rank, told = pair.a.shape[0] if pair.a.shape else 0, scales.rank_of(modules[name])
            if rank != told:
                what = f"tensor {quote(pair.a.name)} has rank {rank}"
                raise ModelFileError(f"{path}: {what}, {CONFIG} says {told}; one of the two is of another adapter")
        return assemble(path, known, pairs, lambda name, rank: scale * scales.of(modules[name]))


def _scales(fields: ConfigValues) -> LoraScaling:
    """What a configuration says of ranks and scales. Raises UnsupportedModel for what would change the result."""
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{fields.where}: peft_type is {kind!r}; only LORA is supported")
    for key, why in REFUSED.items():
        if fields.values.get(key):
            raise UnsupportedModel(f"{fields.where}: {key} is set, which is not supported: {why}")
    if (bias := fields.text("bias", "none")) != "none":
        raise UnsupportedModel(f"{fields.where}: bias is {bias!r}; trained biases are not supported, only 'none' is")
    start = fields.values.get("init_lora_weights")
    if not any(start is known or (isinstance(known, str) and start == known) for known in PLAIN_STARTS):
        raise UnsupportedModel(
            f"{fields.where}: init_lora_weights is {shown_value(start)}, which changed the model's own weights: save "
            "the adapter with PEFT's path_initial_model_for_weight_conversion"
        )
    known = HARMLESS | READ | REFUSED.keys()
    if unknown := sorted(str(key) for key, value in fields.values.items() if value and key not in known):
        raise UnsupportedModel(
            f"{fields.where}: {listed([quote(key) for key in unknown])} is not known, and may change the result"
        )
    return LoraScaling(
        fields.integer("r", 1, MAX_RANK),
        fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA),
        fields.flag("use_rslora", False),
        {key: values.integer(key, 1, MAX_RANK) for key, values in _patterns(fields, "rank_pattern").items()},
        {key: values.number(key, -MAX_ALPHA, MAX_ALPHA) for key, values in _patterns(fields, "alpha_pattern").items()},
    )


def _patterns(fields: ConfigValues, key: str) -> dict[str, ConfigValues]:
    """The names in a pattern, in their order, each with where its value is read. Raises UnsupportedModel for regular
    expressions, which a file could make to take for ever."""
    given = fields.values.get(key) or {}
    if not isinstance(given, dict) or len(given) > MAX_PATTERNS:
        raise ModelFileError(f"{fields.where}: {key} must map at most {MAX_PATTERNS} names of modules to numbers")
    values = ConfigValues(given, f"{fields.where}: {key}")
    for name in given:
        if not re.fullmatch(r"\^?[\w.\\-]+\$?", name):
            raise UnsupportedModel(f"{values.where}: {quote(name)} is a regular expression; only names are supported")
    return dict.fromkeys(given, values)


def _of_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first name that the module's ends with, whole words between dots; "^" asks for all of it."""
    for name, value in pattern.items():
        plain = name.removesuffix("$").replace("\\.", ".")
        whole, plain = plain.startswith("^"), plain.removeprefix("^")
        if module == plain or (not whole and module.endswith(f".{plain}")):
            return value
    return default


def _pairs(
    path: Path, files: SafetensorsFiles, base: Base, known: Mapping[str, StoredMatrix], modules: dict[str, str]
) -> dict[str, Pair]:
    """The matrices by the names of folders; `modules` gets the name of each one's module."""
    halves, adapters = [], set[str]()
    for name in files.names:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedModel(f"{path}: tensor {quote(name)} is none of an adapter of low rank{_hint(name)}")
        module = match["module"].removeprefix(PREFIX)
        text = module.replace("language_model.", "", 1)  # of a model that reads images as well
        fronts = dict.fromkeys(("", "model.", base.hf.name_prefix))  # some are of a model without its head
        fronted = (front + name for name in (module, text) for front in fronts)
        each = [one for name in fronted for one in base.table_names(name)]
        full = next((one for one in each if one in known), module)
        if full not in known:
            raise no_such_weight(
                path, name, known, next(filter(None, (base.find_conflict(one, HF) for one in each)), "")
            )
        adapters.add(match["adapter"] or "")
        if len(adapters) > 1:
            raise UnsupportedModel(f"{path} holds several adapters, of which {quote(name)} is one: save each alone")
        if (kind := files.tensors[name].type_name) not in FLOATS:
            raise UnsupportedModel(f"{path}: tensor {quote(name)} is {kind}; it must be one of {', '.join(FLOATS)}")
        modules[full] = module
        halves.append((full, match["side"].lower(), files.tensor(name)))
    return match_pairs(path, halves)


def _hint(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return ": DoRA is not supported"
    if "lora_embedding" in name:
        return ": adapters of embeddings are not supported"
    return ": trained weights are not supported, merge them into the model"
