"""The names of `general.file_type`. Source: `enum llama_ftype` in llama.cpp's llama.h."""

from sporelm.quant.quant_mixes import MIXES

FILE_TYPES: dict[int, str] = {mix.file_type: mix.name for mix in MIXES.values()} | {39: "NVFP4"}
