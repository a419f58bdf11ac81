"""`filter-meta:GLOB` and `filter-tensor:GLOB`: keep what fits."""

from collections.abc import Callable
from dataclasses import replace

from sporelm.errors import UsageError
from sporelm.tools.lazy import Model
from sporelm.tools.sources import matching
from sporelm.weights.gguf.limits import ALIGNMENT_KEY

KEPT = ("general.architecture", ALIGNMENT_KEY)  # without them the file means something else, or nothing


def filter_meta(pattern: str) -> Callable[[Model], Model]:
    """Keep the metadata that fits, and the architecture and alignment always. Raises UsageError without a pattern."""
    _check(pattern, "filter-meta:tokenizer.*")

    def step(model: Model) -> Model:
        kept = {*matching(model.metadata, [pattern]), *KEPT}
        return replace(model, metadata={key: entry for key, entry in model.metadata.items() if key in kept})

    return step


def filter_tensor(pattern: str) -> Callable[[Model], Model]:
    """Keep the tensors that fit. Raises UsageError without a pattern."""
    _check(pattern, "filter-tensor:!blk.0.*")

    def step(model: Model) -> Model:
        kept = set(matching((tensor.name for tensor in model.tensors), [pattern]))
        return replace(model, tensors=[tensor for tensor in model.tensors if tensor.name in kept])

    return step


def _check(pattern: str, example: str) -> None:
    if not pattern:
        raise UsageError(f"the step needs a pattern, as in '{example}'")
