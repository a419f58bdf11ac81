"""The names that checkpoints give to GELU, and the kinds of `ops.activate` that they stand for."""

from typing import Final

# Names of GELU -> kinds of `ops.activate`. transformers computes "fast" with a tanh.
GELUS: Final = {"gelu": "gelu"} | dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh")
