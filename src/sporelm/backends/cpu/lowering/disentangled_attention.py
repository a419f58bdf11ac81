"""Lowering of disentangled attention."""

import numpy as np

from sporelm import ops
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.lowering.emitter import Emitter, max_extent, row_stride
from sporelm.backends.cpu.lowering.encoder_attention import emit_encoder_attention
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.disentangled_attention import distance_columns
from sporelm.ops.spec import spec_of


@lowers(ops.disentangled_attention)
def _lower_disentangled_attention(emitter: Emitter, call: Call) -> None:
    """Lower `disentangled_attention`: the columns of all distances of a step are a table of the program."""
    q, row_scores, key_scores, buckets = call.args[0], *call.args[4:], call.options["buckets"]
    far = max_extent(spec_of(q).shape[0])
    columns = distance_columns(np.arange(-far, far), buckets, call.options["max_distance"]) * 4
    fields = {
        "row_scores": emitter.address(row_scores),
        "key_scores": emitter.address(key_scores),
        "apart_stride": row_stride(row_scores),
    }
    fields |= {"apart_bytes": 8 * buckets, "columns": emitter.context.store_words(columns.tolist()) + 8 * far}
    emit_encoder_attention(
        emitter,
        call,
        AttentionShape(KvPages(call.options["head_dim"], "f32"), 1, disentangled=True),
        fields,
        windowed=False,
    )
