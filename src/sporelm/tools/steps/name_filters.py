"""`filter-meta:GLOB` and `filter-tensor:GLOB`: keep what fits."""

from collections.abc import Callable, Collection
from dataclasses import replace

from sporelm.errors import RequestError, UsageError
from sporelm.files.gguf.gguf_limits import ALIGNMENT_KEY
from sporelm.tools.lazy_model import LazyModel
from sporelm.tools.model_files import filter_names

KEEP_NOTHING = "!*"  # the pattern that is meant to keep nothing
ALWAYS_KEPT_KEYS = ("general.architecture", ALIGNMENT_KEY)  # without them the file means something else, or nothing


def filter_meta(pattern: str) -> Callable[[LazyModel], LazyModel]:
    """Keep the metadata that fits, and the architecture and alignment always. Raises UsageError without a pattern."""
    _check_pattern(pattern, "filter-meta:tokenizer.*")

    def step(model: LazyModel) -> LazyModel:
        kept = {*_filter_checked(model.metadata, pattern, "metadata key"), *ALWAYS_KEPT_KEYS}
        return replace(model, metadata={key: entry for key, entry in model.metadata.items() if key in kept})

    return step


def filter_tensor(pattern: str) -> Callable[[LazyModel], LazyModel]:
    """Keep the tensors that fit. Raises UsageError without a pattern."""
    _check_pattern(pattern, "filter-tensor:!blk.0.*")

    def step(model: LazyModel) -> LazyModel:
        kept = set(_filter_checked([tensor.name for tensor in model.tensors], pattern, "tensor"))
        return replace(model, tensors=[tensor for tensor in model.tensors if tensor.name in kept])

    return step


def _filter_checked(names: Collection[str], pattern: str, what: str) -> list[str]:
    """The names that fit. Raises RequestError where none does, unless the pattern says so."""
    kept = filter_names(names, [pattern])
    if names and not kept and pattern != KEEP_NOTHING:
        raise RequestError(
            f"no {what} fits {pattern[:80]!r}, so none would be left; a pattern must match the whole name, and"
            f" {KEEP_NOTHING!r} removes all"
        )
    return kept


def _check_pattern(pattern: str, example: str) -> None:
    if not pattern:
        raise UsageError(f"the step needs a pattern, as in '{example}'")
