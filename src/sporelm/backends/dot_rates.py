"""The rate of integer products by number format, from a back-end's `measure_limits`."""

from collections.abc import Mapping

from sporelm.quant import QuantFormat


def dot_rate_of(rates: Mapping[str, float], weights: type[QuantFormat]) -> float:
    """Return the operations a second of products with weights of a format: int8_dot_8bit_ops_s of weights of eight
    bits, and so on, where the back-end measured it, else int8_dot_ops_s."""
    bits = 8 * weights.nbytes // weights.values
    return rates.get(f"int8_dot_{bits}bit_ops_s", rates["int8_dot_ops_s"])
