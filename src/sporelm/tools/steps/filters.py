"""`filter-meta:GLOB` and `filter-tensor:GLOB`: keep what fits."""

from collections.abc import Callable, Collection
from dataclasses import replace

from sporelm.errors import RequestError, UsageError
from sporelm.tools.lazy import Model
from sporelm.tools.sources import matching
from sporelm.weights.gguf.limits import ALIGNMENT_KEY

NONE = "!*"  # the pattern that is meant to keep nothing
KEPT = ("general.architecture", ALIGNMENT_KEY)  # without them the file means something else, or nothing


def filter_meta(pattern: str) -> Callable[[Model], Model]:
    """Keep the metadata that fits, and the architecture and alignment always. Raises UsageError without a pattern."""
    _check(pattern, "filter-meta:tokenizer.*")

    def step(model: Model) -> Model:
        kept = {*_kept(model.metadata, pattern, "metadata key"), *KEPT}
        return replace(model, metadata={key: entry for key, entry in model.metadata.items() if key in kept})

    return step


def filter_tensor(pattern: str) -> Callable[[Model], Model]:
    """Keep the tensors that fit. Raises UsageError without a pattern."""
    _check(pattern, "filter-tensor:!blk.0.*")

    def step(model: Model) -> Model:
        kept = set(_kept([tensor.name for tensor in model.tensors], pattern, "tensor"))
        return replace(model, tensors=[tensor for tensor in model.tensors if tensor.name in kept])

    return step


def _kept(names: Collection[str], pattern: str, what: str) -> list[str]:
    """The names that fit. Raises RequestError where none does, unless the pattern says so."""
    kept = matching(names, [pattern])
    if names and not kept and pattern != NONE:
        raise RequestError(
            f"no {what} fits {pattern[:80]!r}, so that none would be left; patterns are of whole names, and {NONE!r}"
            " takes all away"
        )
    return kept


def _check(pattern: str, example: str) -> None:
    if not pattern:
        raise UsageError(f"the step needs a pattern, as in '{example}'")
