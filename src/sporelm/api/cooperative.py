"""Tasks that need several engine steps, which they share with other requests."""

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from sporelm.engine.inference_engine import InferenceEngine

T = TypeVar("T")
# Yields while the engine has work of the task to compute. The generator's return value is the result.
CooperativeTask = Generator[None, None, T]


def run_to_completion(task: CooperativeTask[T], engine: InferenceEngine) -> T:
    """Step the engine until a task ends, and return its result. If a step fails, the task is closed."""
    with closing(task):
        while True:
            try:
                next(task)
            except StopIteration as end:
                result: T = end.value
                return result
            engine.step()
