"""The path of a prompt's ids from `LLM.generate` to the kernels: which files' functions receive them."""

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import sporelm
from sporelm import LLM, SamplingParams
from sporelm.engine import Request

SOURCES = str(Path(sporelm.__file__).parent)
PROMPT = [3 + 7 * number % 41 for number in range(80)]  # more than a page, in one step
MAX_ITEMS = 128  # of a container that are looked at
CONTAINERS = (list, tuple, deque)
MAX_DEPTH = 4
FILES = [
    "api/llm.py",
    "api/text_generation.py",
    "backends/cpu/cpu_program.py",
    "engine/engine.py",
    "engine/kv/prefix_cache.py",
    "engine/queue.py",
    "engine/request.py",
    "engine/runner.py",
    "engine/scheduler.py",
    "engine/worker.py",
    "plan/plan.py",
]
KERNELS_ARE_DONE = "CpuProgram.run"  # of the step of the prompt


def contains_prompt(ids: Sequence[int]) -> bool:
    """Whether the prompt's ids are in a sequence, one after the other."""
    return any(list(ids[start : start + len(PROMPT)]) == PROMPT for start in range(len(ids) - len(PROMPT) + 1))


def carries_ids(value: Any, depth: int = 0) -> bool:
    """Whether a value is or holds the prompt's ids: a sequence, an array, a request, or an object with one of them."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu" and contains_prompt(value[:MAX_ITEMS].tolist())
    if isinstance(value, Request):
        return contains_prompt(getattr(value, "all_token_ids", ()))
    if depth == MAX_DEPTH:
        return False
    if isinstance(value, CONTAINERS):
        if value and all(type(item) is int for item in value):
            return contains_prompt(list(value)[:MAX_ITEMS])
        return any(carries_ids(item, depth + 1) for item in list(value)[:MAX_ITEMS])
    if isinstance(value, Mapping):
        return any(carries_ids(item, depth + 1) for item in list(value.values())[:MAX_ITEMS])
    held = (getattr(value, name, None) for name in ("request", "tokens", "scheduled") if is_ours(value))
    return any(carries_ids(item, depth + 1) for item in held)


def is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("sporelm.")


@contextmanager
def trace_receivers() -> Iterator[dict[str, Counter[str]]]:
    """Count the calls of functions of the package that get the ids as an argument, by file and function."""
    receivers: dict[str, Counter[str]] = {}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code.co_qualname == KERNELS_ARE_DONE:
            sys.setprofile(None)
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCES):
            return
        file = str(Path(code.co_filename).relative_to(SOURCES))
        if code.co_name.startswith("<"):
            return
        count = code.co_argcount + code.co_kwonlyargcount
        values = frame.f_locals
        if any(carries_ids(values.get(name)) for name in code.co_varnames[:count]):
            receivers.setdefault(file, Counter())[code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        yield receivers
    finally:
        sys.setprofile(None)


def test_files_that_a_prompts_ids_pass(story: Path) -> None:
    params = SamplingParams(max_tokens=2, temperature=0.0)
    with LLM(story, threads=1, max_context=256) as llm:
        llm.generate([list(range(80))], params)  # compiles what it needs
        with trace_receivers() as receivers:
            (completion,) = llm.generate([PROMPT], params)
    assert completion.prompt_token_ids == PROMPT
    assert sorted(receivers) == FILES
    parses = {name: count for name, count in receivers["engine/request.py"].items() if "parse" in name}
    assert parses == {"parse_token_ids": 1}, "ids are checked and copied once"
