"""Number formats that kernels read from planes: a file each. See `plane_format` for planes and kernel functions."""

from collections.abc import Mapping

from sporelm.backends.cuda.formats import q4_0, q4_k, q6_k, q8_0
from sporelm.backends.cuda.formats.plane_format import PlaneFormat

PLANE_FORMATS: Mapping[str, PlaneFormat] = {
    "Q4_0": q4_0.FORMAT,
    "Q4_K": q4_k.FORMAT,
    "Q6_K": q6_k.FORMAT,
    "Q8_0": q8_0.FORMAT,
}
