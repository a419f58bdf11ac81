"""Adapters in the folders that Hugging Face's PEFT writes: adapter_config.json and adapter_model.safetensors.

Tensors: base_model.model.MODULE.lora_A.weight [rank, in] and .lora_B.weight [out, rank]. Modules have the names of
transformers' modules, which differ from the tensor names of folders for some families; both are recognized. The scale
is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (Kalajdzievski 2023); rank_pattern and alpha_pattern override
them for modules whose names end with a pattern. fan_in_fan_out describes the weight's layout; A and B do not change.
"""

import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.config_values import format_value as format_value
from sporelm.checkpoints.lora.adapter import Adapter, Pair, TargetModel, assemble, match_pairs, unknown_weight_error
from sporelm.checkpoints.lora.stored_matrix import StoredMatrix
from sporelm.checkpoints.tensor_names import HF, format_names
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

# Options that change the result beyond the low-rank matrices, and the reason.
UNSUPPORTED_KEYS = {
    "use_dora": "DoRA also changes the norms of weights",
    "lora_bias": "it also trains biases",
    "modules_to_save": "it contains fully trained modules",
    "trainable_token_indices": "it contains trained embeddings",
    "layer_replication": "it repeats layers of the model",
    "use_qalora": "QA-LoRA pools the columns of x",
    "alora_invocation_tokens": "it is an activated LoRA (aLoRA)",
    "target_parameters": "it adapts parameters that are not matrices of layers",
    "arrow_config": "Arrow chooses among several adapters",
}
# Options that do not affect the result of a trained adapter.
IGNORED_KEYS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config"),
        *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
        *("layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"),
        "task_type",
    }
)
READ_KEYS = frozenset(("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"))
# Initializations of A and B that do not change the model's weights.
SUPPORTED_INITS = (None, True, False, "gaussian", "eva", "orthogonal")

_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")


class LoraScaling(NamedTuple):
    """Rank and alpha of each module, as the configuration gives them."""

    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_for(self, module: str) -> int:
        return _match_pattern(self.ranks, module, self.rank)

    def scale_for(self, module: str) -> float:
        """Return the factor of the product of A and B."""
        rank = self.rank_for(module)
        return _match_pattern(self.alphas, module, self.alpha) / (sqrt(rank) if self.by_root else rank)


def read_peft(folder: Path, base: TargetModel, scale: float) -> Adapter:
    """Return the adapter in a folder. Raises as `read_adapter`."""
    scales = _read_scales(ConfigValues(read_object(folder / CONFIG), str(folder / CONFIG)))
    path = folder / WEIGHTS
    if not path.exists():
        if (folder / PICKLED).exists():
            raise UnsupportedModel(
                f"{folder / PICKLED} is a pickle, which can execute code, and is not read. "
                f"Save the adapter again with PEFT's save_pretrained, which writes {WEIGHTS}"
            )
        raise ModelNotFound(f"{folder} has no {WEIGHTS}: it is not an adapter, or is incomplete")
    with open_safetensors(path) as files:
        modules: dict[str, str] = {}
        known = base.stored_matrices(HF)
        pairs = _read_pairs(path, files, base, known, modules)
        for name, pair in pairs.items():
            rank, expected = pair.a.shape[0] if pair.a.shape else 0, scales.rank_for(modules[name])
            if rank != expected:
                what = f"tensor {quote(pair.a.name)} has rank {rank}"
                raise ModelFileError(
                    f"{path}: {what}, {CONFIG} has {expected}; one of the two belongs to another adapter"
                )
        return assemble(path, known, pairs, lambda name, rank: scale * scales.scale_for(modules[name]))


def _read_scales(fields: ConfigValues) -> LoraScaling:
    """Return the ranks and scales of a configuration. Raises UnsupportedModel for options that would change the
    result."""
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{fields.where}: peft_type {kind!r} is not supported; LORA is")
    for key, why in UNSUPPORTED_KEYS.items():
        if fields.values.get(key):
            raise UnsupportedModel(f"{fields.where}: {key} is set, which is not supported: {why}")
    if (bias := fields.text("bias", "none")) != "none":
        raise UnsupportedModel(f"{fields.where}: bias {bias!r} is not supported; 'none' is")
    init = fields.values.get("init_lora_weights")
    if not any(init is known or (isinstance(known, str) and init == known) for known in SUPPORTED_INITS):
        raise UnsupportedModel(
            f"{fields.where}: init_lora_weights is {format_value(init)}, which changes the model's own weights. Save "
            "the adapter with PEFT's path_initial_model_for_weight_conversion"
        )
    known = IGNORED_KEYS | READ_KEYS | UNSUPPORTED_KEYS.keys()
    if unknown := sorted(str(key) for key, value in fields.values.items() if value and key not in known):
        raise UnsupportedModel(
            f"{fields.where}: {format_names([quote(key) for key in unknown])} is unknown and may change the result"
        )
    return LoraScaling(
        fields.integer("r", 1, MAX_RANK),
        fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA),
        fields.flag("use_rslora", False),
        {key: values.integer(key, 1, MAX_RANK) for key, values in _read_patterns(fields, "rank_pattern").items()},
        {
            key: values.number(key, -MAX_ALPHA, MAX_ALPHA)
            for key, values in _read_patterns(fields, "alpha_pattern").items()
        },
    )


def _read_patterns(fields: ConfigValues, key: str) -> dict[str, ConfigValues]:
    """Return the names in a pattern, in their order, each with the source of its value.

    Raises UnsupportedModel for regular expressions: matching one from a file might not terminate in reasonable time.
    """
    given = fields.values.get(key) or {}
    if not isinstance(given, dict) or len(given) > MAX_PATTERNS:
        raise ModelFileError(f"{fields.where}: {key} must map at most {MAX_PATTERNS} names of modules to numbers")
    values = ConfigValues(given, f"{fields.where}: {key}")
    for name in given:
        if not re.fullmatch(r"\^?[\w.\\-]+\$?", name):
            raise UnsupportedModel(f"{values.where}: {quote(name)} is a regular expression; only names are supported")
    return dict.fromkeys(given, values)


def _match_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that the module ends with, at whole name parts; "^" requires the full
    name."""
    for name, value in pattern.items():
        plain = name.removesuffix("$").replace("\\.", ".")
        is_full_name, plain = plain.startswith("^"), plain.removeprefix("^")
        if module == plain or (not is_full_name and module.endswith(f".{plain}")):
            return value
    return default


def _read_pairs(
    path: Path, files: SafetensorsFiles, base: TargetModel, known: Mapping[str, StoredMatrix], modules: dict[str, str]
) -> dict[str, Pair]:
    """Return the matrices by the tensor names of folders.

    modules   receives the module of each name
    """
    halves, adapters = [], set[str]()
    for name in files.names:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedModel(f"{path}: tensor {quote(name)} is not a LoRA matrix{_explain_tensor(name)}")
        module = match["module"].removeprefix(PREFIX)
        text = module.replace("language_model.", "", 1)  # of a multimodal model
        prefixes = dict.fromkeys(("", "model.", base.hf.name_prefix))  # some are for a model without its head
        full_names = (prefix + name for name in (module, text) for prefix in prefixes)
        candidates = [one for name in full_names for one in base.table_names(name)]
        full = next((one for one in candidates if one in known), module)
        if full not in known:
            raise unknown_weight_error(
                path, name, known, next(filter(None, (base.find_conflict(one, HF) for one in candidates)), "")
            )
        adapters.add(match["adapter"] or "")
        if len(adapters) > 1:
            raise UnsupportedModel(
                f"{path} holds several adapters ({quote(name)} belongs to a second one). Save each to its own folder"
            )
        if (kind := files.tensors[name].type_name) not in FLOATS:
            raise UnsupportedModel(f"{path}: tensor {quote(name)} is {kind}; it must be one of {', '.join(FLOATS)}")
        modules[full] = module
        halves.append((full, match["side"].lower(), files.tensor(name)))
    return match_pairs(path, halves)


def _explain_tensor(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return ": DoRA is not supported"
    if "lora_embedding" in name:
        return ": adapters of embeddings are not supported"
    return ": fully trained weights are not supported. Merge them into the model"
