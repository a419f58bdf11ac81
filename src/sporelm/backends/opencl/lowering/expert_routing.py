"""Expert routing: one work-item for each token."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, num_elements, rows_of, width_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import spec_of
from sporelm.tensor.dtype import F32


@lowers(ops.route)
def lower_route(emit: LaunchEmitter, call: Call) -> None:
    logits, selection_bias, factors = (*call.args, None, None)[:3]
    given = call.options
    groups, group_score = given.get("groups", 1), given.get("group_score", "max")
    options = {
        "EXPERTS": width_of(logits),
        "K": given["k"],
        f"SCORES_{given.get('scores', 'softmax')}": True,
        "GROUPS": groups,
        "TOP_GROUPS": given.get("top_groups", 1),
        "SUM_OF_TWO": group_score != "max",
        "BY_LOGITS": selection_bias is None and (groups == 1 or group_score == "max"),
        "SELECTION_BIAS": selection_bias is not None,
        "FACTORS": factors is not None,
        "RENORMALIZE": given.get("renormalize", False),
    }
    numbers, narrow = emit.get_stored_buffer(logits)
    nbytes = num_elements(spec_of(logits)) * F32.nbytes
    arguments = [
        numbers,
        None if selection_bias is None else emit.get_f32_buffer(selection_bias),
        None if factors is None else emit.get_f32_buffer(factors),
        *(emit.scratch(nbytes), emit.scratch(nbytes)),
        *(emit.get_result_buffer(result) for result in call.results),
        ScaledExtent(rows_of(logits)),
        *(np.float32(given.get(name, default)) for name, default in (("epsilon", 0), ("scale", 1), ("near", 0))),
    ]
    emit.launch(
        emit.make_program("expert_routing", ["activations.h"], options | narrow | {"ACTIVATED": "float"}),
        "route_tokens",
        arguments,
        [ScaledExtent(rows_of(logits))],
        [1],
    )
