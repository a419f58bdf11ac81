"""Our number formats as a configuration of transformers, and the guard against saving packed weights."""

from typing import Any

from transformers.quantizers.auto import register_quantization_config
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "sporelm"


@register_quantization_config(METHOD)
class SporelmConfig(QuantizationConfigMixin):  # type: ignore[misc, unused-ignore]
    """Have `from_pretrained` quantize a model to one of our formats and compute it with our kernels.

    format           as of `accelerate`
    threads          as of `accelerate`
    keep_originals   as of `accelerate`
    """

    def __init__(
        self, format: str = "q8_0", threads: int | None = None, keep_originals: bool = False, **options: Any
    ) -> None:
        self.quant_method: Any = METHOD
        self.format, self.threads, self.keep_originals = format, threads, keep_originals


class PackedQuantizer(HfQuantizer):  # type: ignore[misc, unused-ignore]
    """Stands in a model with packed weights, so that `save_pretrained` refuses to write a model without them."""

    requires_calibration = False

    def is_serializable(self) -> bool:
        """Return whether `save_pretrained` can store it: packed weights fit one machine only."""
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True
