"""Our number formats as a quantization method of transformers: `from_pretrained(..., quantization_config=...)`."""

from typing import Any

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sporelm.adaptors.transformers.accelerate import accelerate
from sporelm.quant import format_of
from sporelm.quant.format import check_can_quantize

METHOD = "sporelm"


@register_quantization_config(METHOD)
class SporelmConfig(QuantizationConfigMixin):
    """Have `from_pretrained` quantize a model to one of our formats and compute it with our kernels.

    format    as of `accelerate`
    threads   as of `accelerate`
    """

    def __init__(self, format: str = "q8_0", threads: int | None = None, **options: Any) -> None:
        self.quant_method: Any = METHOD
        self.format, self.threads = format, threads


@register_quantizer(METHOD)
class SporelmQuantizer(HfQuantizer):
    """Loads a model as it is stored, then swaps its parts. `model.acceleration` says which."""

    requires_calibration = False
    quantization_config: SporelmConfig

    def validate_environment(self, *args: Any, **options: Any) -> None:
        """Raise an error for a format that cannot be written, before anything is loaded."""
        check_can_quantize(format_of(self.quantization_config.format))

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        model.eval()
        with torch.no_grad():
            model.acceleration = accelerate(
                model, self.quantization_config.format, threads=self.quantization_config.threads
            )
        return model

    def is_serializable(self) -> bool:
        """Return whether `save_pretrained` can store it: packed weights fit one machine only."""
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True
