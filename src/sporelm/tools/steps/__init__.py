"""The steps of `convert`: each takes a model and gives the model that follows. `STEPS` lists them."""

from collections.abc import Callable, Sequence

from sporelm.errors import UsageError
from sporelm.tools.lazy_model import LazyModel
from sporelm.tools.steps.cast_tensors import cast
from sporelm.tools.steps.merge_linear import merge_linear, split_linear
from sporelm.tools.steps.name_filters import filter_meta, filter_tensor
from sporelm.tools.steps.permute_rows import permute_qk, unpermute_qk
from sporelm.tools.steps.sort_tensors import sort
from sporelm.tools.steps.to_llama import to_llama

Step = Callable[[LazyModel], LazyModel]

# Name -> what makes the step from its argument, the text behind the first colon.
STEPS: dict[str, Callable[[str], Step]] = {
    "sort": sort,
    "permute-qk": permute_qk,
    "permute-qk-rev": unpermute_qk,
    "merge-linear": merge_linear,
    "split-linear": split_linear,
    "cast": cast,
    "to-llama": to_llama,
    "filter-meta": filter_meta,
    "filter-tensor": filter_tensor,
}
# Another word for a step.
ALIASES = {"!permute-qk": "permute-qk-rev", "!merge-linear": "split-linear"}


def parse_steps(texts: Sequence[str]) -> list[Step]:
    """The steps that texts such as "sort -> cast:linear:Q8_0" name, in order. Raises UsageError."""
    steps = []
    for text in texts:
        for word in text.split("->"):
            name, _, argument = word.strip().partition(":")
            name = ALIASES.get(name, name)
            if name not in STEPS:
                raise UsageError(f"there is no step {name[:80]!r}; there are {', '.join(STEPS)}")
            steps.append(STEPS[name](argument))
    return steps
