"""Expert routing: one work-item for each token."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Amount
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, number_of, rows_of, width_of
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
    numbers, narrow = emit.as_stored(logits)
    nbytes = number_of(spec_of(logits)) * F32.nbytes
    arguments = [
        numbers,
        None if selection_bias is None else emit.wide(selection_bias),
        None if factors is None else emit.wide(factors),
        *(emit.scratch(nbytes), emit.scratch(nbytes)),
        *(emit.result(result) for result in call.results),
        Amount(rows_of(logits)),
        *(np.float32(given.get(name, default)) for name, default in (("epsilon", 0), ("scale", 1), ("near", 0))),
    ]
    emit.launch(
        emit.program("expert_routing", ["activations.h"], options | narrow | {"ACTIVATED": "float"}),
        "route_tokens",
        arguments,
        [Amount(rows_of(logits))],
        [1],
    )
