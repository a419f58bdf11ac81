"""GGUF files of Nanbeige 4.2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nanbeige import Nanbeige

MAX_LOOPS: Final = 64
# Under the same names in both kinds of files.
LOOP_KEYS: Final = (
    Key("num_loops", "num_loops", "u32", 1, MAX_LOOPS, 1),
    Key("skips_loop_norm", "skip_loop_final_norm", "bool", default=False),
)


@register
class NanbeigeGguf(GgufSchema):
    """`nanbeige`. Queries and keys are permuted."""

    names = ("nanbeige",)
    architecture = Nanbeige
    keys = gguf_keys(*LOOP_KEYS, without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS
