"""The tensors of an mmproj file that are quantized: the matrices of a tower's layers and of its projector.

What stays as it is: kernels of patches, positions, norms and biases, as in llama.cpp's conversion/base.py and gemma.py.
"""

from collections.abc import Mapping

from sporelm.quant.quant_mixes import FormatChoice, FormatRequest, Mix, fit_format_to_width, sort_tensor_names

EXACT = ("patch_embd", "patch_merger", "position_embd", "pos_embed", "_norm.")
TRANSPOSED = ("mm.input_projection.weight",)  # stored [in, out], so that rows are not what is multiplied


def is_transposed(name: str) -> bool:
    """Return whether a matrix is stored with its inputs as rows; then it cannot be quantized."""
    return name in TRANSPOSED


def choose_tower_formats(
    mix: Mix, shapes: Mapping[str, tuple[int, ...]], request: FormatRequest
) -> dict[str, FormatChoice]:
    """Return the format of each tensor that is quantized, by name: the mix's main one, or the one requested."""
    chosen = {}
    for name in sort_tensor_names(list(shapes)):
        if is_quantized(name, shapes[name]):
            preferred = request.override(name) or mix.main
            chosen[name] = FormatChoice(fit_format_to_width(preferred, shapes[name][-1]), preferred)
    return chosen


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is a matrix of a layer or of the projector."""
    is_matrix = len(shape) == 2 and name.endswith(".weight")
    return is_matrix and not is_transposed(name) and not any(part in name for part in EXACT)
