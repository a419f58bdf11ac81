"""Our number formats as a quantization method of transformers: `from_pretrained(..., quantization_config=...)`."""

from typing import Any

import torch
from transformers.quantizers.auto import register_quantizer

from sporelm.adaptors.transformers.accelerate import accelerate
from sporelm.adaptors.transformers.quantization_config import METHOD, PackedQuantizer, SporelmConfig
from sporelm.quant import format_of
from sporelm.quant.format import check_can_quantize


@register_quantizer(METHOD)
class SporelmQuantizer(PackedQuantizer):
    """Loads a model as it is stored, then swaps its parts. `model.acceleration` says which."""

    quantization_config: SporelmConfig

    def validate_environment(self, *args: Any, **options: Any) -> None:
        """Raise an error for a format that cannot be written, before anything is loaded."""
        check_can_quantize(format_of(self.quantization_config.format))

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        config = self.quantization_config
        model.eval()
        with torch.no_grad():
            model.acceleration = accelerate(
                model, config.format, threads=config.threads, keep_originals=config.keep_originals
            )
        return model
