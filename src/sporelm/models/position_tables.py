"""Tables of positions: for rotary embeddings and for linear biases."""

import numpy as np

from sporelm.models.alibi import alibi_slopes
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import LOCAL, ROPE, SLOPES
from sporelm.models.rotary import rope_table


def position_tables(config: ModelConfig, context: int, local_rotary: int = 0) -> dict[str, np.ndarray]:
    """Return the tables that a configuration needs, for `context` positions, by their names among the weights.

    `local_rotary`: rotated channels of a head in layers with a window; 0: as in the others.
    """
    tables: dict[str, np.ndarray] = {}
    if config.alibi:
        tables[SLOPES] = alibi_slopes(config.heads, config.alibi)
    if config.rotary:
        tables[ROPE] = rope_table(context, config.rotary, config.rope_theta, config.rope_scaling)
    if config.rotary and config.local_theta:
        tables[LOCAL] = rope_table(context, local_rotary or config.rotary, config.local_theta)
    return tables
