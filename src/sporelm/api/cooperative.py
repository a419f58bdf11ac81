"""Tasks that need several engine steps, so that the steps of other requests can run in between."""

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from sporelm.engine import Engine

T = TypeVar("T")
# Yields after each step whether the task still holds pages. The generator's return value is the result.
CooperativeTask = Generator[bool, None, T]


def run_to_completion(task: CooperativeTask[T], engine: Engine) -> T:
    """Run all steps of a task and return its result.

    While the task waits for pages, the engine steps the requests that hold them. If a step fails, the task is closed.
    """
    with closing(task):
        while True:
            try:
                holds_pages = next(task)
            except StopIteration as end:
                result: T = end.value
                return result
            if not holds_pages and engine.scheduler.prompt_rows.has_waiting:
                engine.step()
