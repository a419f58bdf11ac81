"""Which number format each weight of a made-up model gets: one for all matrices, or a mix such as Q4_K_M."""

from sporelm.bench.shapes import Shape
from sporelm.errors import RequestError
from sporelm.quant import F32, FORMATS, QuantFormat
from sporelm.quant.made_up import FACTOR_AT
from sporelm.quant.mixes import MIXES as ALL_MIXES
from sporelm.quant.mixes import Traits, choose
from sporelm.quant.untouched import is_untouched

NOT_FOR_WEIGHTS = {"F64", "Q8_1", "Q8_K"}  # ggml multiplies no matrices of these

# The mixes that differ from one format for all matrices, by the names they have here.
MIXES = {
    name.lower(): mix
    for name, mix in ALL_MIXES.items()
    if name not in FORMATS and name != "MXFP4_MOE" and FORMATS[mix.main].can_quantize
}

# `general.file_type` of a model by its format's name here; a pure K-quant is called "small".
FILE_TYPES = {name.lower(): mix.file_type for name, mix in ALL_MIXES.items()} | {
    "q3_k": ALL_MIXES["Q3_K_S"].file_type,
    "q4_k": ALL_MIXES["Q4_K_S"].file_type,
    "q5_k": ALL_MIXES["Q5_K_S"].file_type,
    "mxfp4": ALL_MIXES["MXFP4_MOE"].file_type,
    "nvfp4": 39,
}


def plain() -> list[str]:
    """The number formats that a made-up model's weights can have, by their ids."""
    able = [form for form in FORMATS.values() if form.can_quantize or form.name in FACTOR_AT]
    chosen = [form for form in able if form.name not in NOT_FOR_WEIGHTS]
    return [form.name.lower() for form in sorted(chosen, key=lambda form: form.ggml_id)]


def known() -> list[str]:
    """The names that `formats` takes: the number formats by their ids, then the mixes."""
    return plain() + list(MIXES)


def formats(name: str, shape: Shape, label: str) -> dict[str, type[QuantFormat]]:
    """The format of every tensor of `shape` by its name: `name` (see `known`) for the matrices, F32 for vectors
    and routers.

    Raises RequestError where a row is not whole blocks of the one format asked for; a mix takes smaller blocks there.
    """
    shapes = shape.tensors()
    if name in MIXES:
        traits = Traits(shape.architecture, shape.layers, shape.heads, shape.kv_heads, shape.experts)
        chosen = choose(MIXES[name], shapes, traits)
        return {tensor: FORMATS[chosen[tensor].format_name] if tensor in chosen else F32 for tensor in shapes}
    wanted = FORMATS[name.upper()]
    matrices = [tensor for tensor, extents in shapes.items() if not is_untouched(tensor, extents, shape.architecture)]
    for extents in (shapes[tensor] for tensor in matrices):
        if extents[-1] % wanted.values:
            fits = [other for other in plain() if extents[-1] % FORMATS[other.upper()].values == 0]
            raise RequestError(
                f"{label}: rows of {extents[-1]} values are not whole blocks of {name}'s {wanted.values}: "
                f"take one of {', '.join(fits)}, or a mix such as q4_k_m, which has smaller blocks there"
            )
    return {tensor: wanted if tensor in matrices else F32 for tensor in shapes}
