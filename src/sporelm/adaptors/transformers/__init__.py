"""Our kernels inside Hugging Face models: `accelerate(model, format="q8_0")`; `SporelmConfig` for `from_pretrained`.

Importing it imports transformers and torch.
"""

from sporelm.errors import BackendError

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise BackendError(f"transformers does not load ({error}). Install it: pip install 'transformers>=5'") from error

from sporelm.adaptors.transformers.accelerate import (
    Acceleration,
    ModuleChange,
    accelerate,
)
from sporelm.adaptors.transformers.hf_quantizer import SporelmQuantizer
from sporelm.adaptors.transformers.quantization_config import SporelmConfig

__all__ = ["Acceleration", "ModuleChange", "SporelmConfig", "SporelmQuantizer", "accelerate"]
