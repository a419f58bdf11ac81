"""The quantization scheme of a folder's weights, by its configuration."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.quantized.assembled_weight import Scheme
from sporelm.checkpoints.quantized.awq import Awq
from sporelm.checkpoints.quantized.bitnet import BitNet
from sporelm.checkpoints.quantized.bitsandbytes import BitsAndBytes
from sporelm.checkpoints.quantized.compressed_tensors import CompressedTensors
from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.checkpoints.quantized.fp8 import Fp8
from sporelm.checkpoints.quantized.gptq import Gptq
from sporelm.checkpoints.quantized.mxfp4 import Mxfp4
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import SafetensorsFiles

SCHEMES: Mapping[str, Callable[[Parts, ConfigValues], Scheme]] = {
    "gptq": Gptq,
    "awq": Awq,
    "fp8": Fp8,
    "fbgemm_fp8": Fp8,
    "modelopt": Fp8,
    "mxfp4": Mxfp4,
    "compressed-tensors": CompressedTensors,
    "bitsandbytes": BitsAndBytes,
    "bitnet": BitNet,
}
# Older tools write the settings to a file of their own, with other names for some keys.
OLDER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
OLD_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}


def with_quantized(files: SafetensorsFiles, config: Mapping[str, Any]) -> SafetensorsFiles | QuantizedFolder:
    """Return the folder's tensors, with quantized ones assembled.

    config   the folder's config.json

    Raises ModelFileError for parts that do not fit together, UnsupportedModel for an unsupported scheme.
    """
    settings = _read_settings(files.path, config)
    if settings is None:
        return files
    method = _find_method(settings)
    if method not in SCHEMES:
        raise UnsupportedModel(f"{settings.where}: quant_method {method!r} is not supported; {', '.join(SCHEMES)} are")
    return QuantizedFolder(files, SCHEMES[method](Parts(files), settings))


def _read_settings(folder: Path, config: Mapping[str, Any]) -> ConfigValues | None:
    """Return the quantization settings; None if there are none."""
    found = config.get("quantization_config", config.get("compression_config"))
    if found is not None:
        where = f"{folder / 'config.json'}: quantization_config"
        if not isinstance(found, Mapping):
            raise ModelFileError(f"{where} is {format_value(found)}; it must be an object")
        return ConfigValues({OLD_NAMES.get(str(key), str(key)): value for key, value in found.items()}, where)
    for name, method in OLDER_FILES.items():
        if (path := folder / name).is_file():
            values = {OLD_NAMES.get(key, key): value for key, value in read_object(path).items()}
            return ConfigValues({"quant_method": method} | values, str(path))
    return None


def _find_method(settings: ConfigValues) -> str:
    """Return the scheme's name."""
    if not settings.has("quant_method") and (settings.has("load_in_4bit") or settings.has("load_in_8bit")):
        return "bitsandbytes"  # configurations of older versions do not name the method
    method = settings.text("quant_method").lower()
    if method in ("auto-round", "intel/auto-round"):  # its folders have the layout of another method
        packing = settings.text("packing_format", "auto_round:auto_gptq").lower()
        return next((known for known in ("gptq", "awq") if packing.endswith(known)), f"{method} of {packing}")
    return method
