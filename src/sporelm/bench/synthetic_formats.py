"""Which number format each weight of a synthetic model gets: one for all matrices, or a mix such as Q4_K_M."""

from sporelm.bench.model_shapes import ModelShape
from sporelm.errors import RequestError
from sporelm.quant import F32, FORMATS, QuantFormat
from sporelm.quant.quant_mixes import MIXES as ALL_MIXES
from sporelm.quant.quant_mixes import ModelTraits, choose_formats
from sporelm.quant.random_blocks import SCALE_OFFSETS
from sporelm.quant.skip_rules import is_skipped

NOT_FOR_WEIGHTS = {"F64", "Q8_1", "Q8_K"}  # ggml multiplies no matrices of these

# The mixes that differ from one format for all matrices, by the names they have here.
SYNTHETIC_MIXES = {
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


def list_number_formats() -> list[str]:
    """The number formats that a synthetic model's weights can have, by their ids."""
    able = [form for form in FORMATS.values() if form.can_quantize or form.name in SCALE_OFFSETS]
    chosen = [form for form in able if form.name not in NOT_FOR_WEIGHTS]
    return [form.name.lower() for form in sorted(chosen, key=lambda form: form.ggml_id)]


def list_formats() -> list[str]:
    """The names that `assign_formats` takes: the number formats by their ids, then the mixes."""
    return list_number_formats() + list(SYNTHETIC_MIXES)


def assign_formats(name: str, shape: ModelShape, label: str) -> dict[str, type[QuantFormat]]:
    """The format of every tensor of `shape` by its name: `name` (see `list_formats`) for the matrices, F32 for vectors
    and routers.

    Raises RequestError where a row is not whole blocks of the one format asked for; a mix takes smaller blocks there.
    """
    shapes = shape.tensors()
    if name in SYNTHETIC_MIXES:
        traits = ModelTraits(shape.architecture, shape.layers, shape.heads, shape.kv_heads, shape.experts)
        chosen = choose_formats(SYNTHETIC_MIXES[name], shapes, traits)
        return {tensor: FORMATS[chosen[tensor].format_name] if tensor in chosen else F32 for tensor in shapes}
    wanted = FORMATS[name.upper()]
    matrices = [tensor for tensor, extents in shapes.items() if not is_skipped(tensor, extents, shape.architecture)]
    for extents in (shapes[tensor] for tensor in matrices):
        if extents[-1] % wanted.values:
            fits = [other for other in list_number_formats() if extents[-1] % FORMATS[other.upper()].values == 0]
            raise RequestError(
                f"{label}: rows of {extents[-1]} values are not whole blocks of {name}'s {wanted.values}: "
                f"take one of {', '.join(fits)}, or a mix such as q4_k_m, which has smaller blocks there"
            )
    return {tensor: wanted if tensor in matrices else F32 for tensor in shapes}
