"""Penalties, biases and bans as sparse edits of logits, for sampling on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.constraint import ConstraintProcessor
from sporelm.engine.sampling.logits_processors import (
    LogitBias,
    LogitsProcessor,
    MinTokens,
    PresencePenalty,
    RepetitionPenalty,
)

NO_EDIT = (0.0, 1.0, 0.0)  # bias, penalty, subtrahend
BIAS, PENALTY, SUBTRAHEND = range(3)

Tokens = NDArray[np.int64]


class LogitEdits(NamedTuple):
    """The edits of one row, as `ops.edit_logits` takes them: rising tokens, and (bias, penalty, subtrahend) of each."""

    tokens: Tokens
    values: NDArray[np.float32]  # [tokens, 3]


NO_EDITS = LogitEdits(np.empty(0, np.int64), np.empty((0, 3), np.float32))


def collect_edits(processors: Sequence[LogitsProcessor]) -> LogitEdits:
    """Return the edits that apply these logits processors now. Constraints are masks, and left out.

    Raises TypeError for a processor that is more than sparse edits: DRY.
    """
    parts: list[tuple[Tokens, int, NDArray[np.float32] | np.float32]] = []
    for processor in processors:
        match processor:
            case LogitBias():
                parts.append((processor.tokens, BIAS, processor.values))
            case RepetitionPenalty():
                parts.append((processor.seen_tokens, PENALTY, processor.penalty))
            case PresencePenalty():
                count = len(processor.indices)
                values = processor.presence + processor.frequency * processor.counts[:count]
                parts.append((processor.tokens[:count], SUBTRAHEND, values))
            case MinTokens() if processor.num_remaining > 0:
                parts.append((processor.stop_ids, SUBTRAHEND, np.float32(np.inf)))
            case MinTokens() | ConstraintProcessor():
                pass
            case _:
                raise TypeError(f"{type(processor).__name__} cannot be written as edits of logits")
    if not parts:
        return NO_EDITS
    tokens = np.unique(np.concatenate([part[0] for part in parts]))
    edits = np.tile(np.array(NO_EDIT, np.float32), (len(tokens), 1))
    for changed, column, numbers in parts:
        edits[np.searchsorted(tokens, changed), column] = numbers
    return LogitEdits(tokens, edits)
