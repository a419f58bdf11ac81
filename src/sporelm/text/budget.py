"""What one rendering of a chat template may use up: time, output, and the values made on the way.

A template comes with a model file, so it may be hostile. Everything that makes a value larger than what it was made
from passes through here before it happens; everything that repeats, or looks through a value, is counted.
"""

import time
from collections.abc import ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from typing import Any

RENDER_SECONDS = 0.2  # of CPU, that one rendering may take
GRAMMAR_SECONDS = 1.0  # of CPU, that compiling a grammar and taking its first step may take
MESSAGE_SECONDS = 0.0002  # more for each message: the slowest of the usual templates take a quarter of that
BASE_WORK = 16 << 20  # characters; other values count VALUE_WORK each
WORK_PER_INPUT = 64  # more for each character of the messages
BASE_OUTPUT = 4 << 20  # characters
OUTPUT_PER_INPUT = 16
MAX_INTEGER_BITS = 4096
VALUE_WORK = 16
_TICKS_PER_LOOK = 16

CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


class LimitReached(Exception):
    """A rendering would use more than its budget."""


class Budget:
    """The budget of one rendering, which the thread that made it spends.

    input_size   characters in the messages
    seconds      of the thread's CPU time
    allowance    seconds more, for the number of messages; errors name `seconds` alone, which is what an operator sets
    work         None: what messages of that size can explain
    """

    def __init__(
        self, input_size: int = 0, seconds: float = RENDER_SECONDS, work: int | None = None, allowance: float = 0.0
    ) -> None:
        self.work = BASE_WORK + WORK_PER_INPUT * input_size if work is None else work
        self.output = BASE_OUTPUT + OUTPUT_PER_INPUT * input_size
        self.seconds = seconds
        self.deadline = time.thread_time() + seconds + allowance
        self._ticks = 0

    def tick(self) -> None:
        """Count one step; raises LimitReached when the time is over."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK == 0 and time.thread_time() > self.deadline:
            raise LimitReached(f"it takes more than {self.seconds:g} s of CPU time")

    def use(self, work: int) -> None:
        """Take `work` from the budget; call it before what it is for."""
        self.work -= work
        if self.work < 0:
            raise LimitReached("it makes more text and values than its messages can explain")
        self.tick()

    def emit(self, characters: int) -> None:
        """Count output."""
        self.output -= characters
        if self.output < 0:
            raise LimitReached("its output is longer than its messages can explain")
        self.tick()

    def use_value(self, value: Any) -> Any:
        """Account for a value just made, and give it back.

        A container is counted in depth each time one is made around it: so none can grow by sharing, and looking
        through one never takes longer than the budget allows.
        """
        kind = type(value)
        if kind is int:
            if value.bit_length() > MAX_INTEGER_BITS:
                raise LimitReached(f"it makes an integer of more than {MAX_INTEGER_BITS} bits")
        elif isinstance(value, (str, bytes)):
            self.use(len(value))
        elif isinstance(value, CONTAINERS):
            self.use(self.size(value, texts=False))
        else:
            self.tick()
        return value

    def use_as_text(self, value: Any, times: int = 1) -> None:
        """Account for `value` before it is written as text `times` times."""
        self.use(times * self.text_size(value))

    def use_look(self, value: Any) -> None:
        """Account for looking through `value`: to compare it, or to search in it."""
        if isinstance(value, str):
            self.use(len(value) >> 3)
        elif isinstance(value, CONTAINERS):
            self.use(self.size(value, texts=True) >> 1)

    def text_size(self, value: Any) -> int:
        """The characters that `value` takes as text, or more."""
        if isinstance(value, (str, bytes)):
            return len(value)
        return self.size(value, texts=True) if isinstance(value, CONTAINERS) else VALUE_WORK

    def size(self, value: Any, *, texts: bool) -> int:
        """The work a container stands for; `texts`: with the characters in it. Stops when the budget is exceeded."""
        total = 0
        stack = [value]
        while stack:
            item = stack.pop()
            total += VALUE_WORK
            if isinstance(item, str):
                total += 2 * len(item) if texts else 0  # quoting may double it
            elif isinstance(item, dict):
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, CONTAINERS):
                stack.extend(item)
            if total + VALUE_WORK * len(stack) > self.work:
                raise LimitReached("it makes larger values than its messages can explain")
        return total


_budget: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


class spending:
    """Within this context, templates rendered by this thread use up `budget`."""

    def __init__(self, budget: Budget) -> None:
        self._mine = budget

    def __enter__(self) -> Budget:
        self._token = _budget.set(self._mine)
        return self._mine

    def __exit__(self, *_: object) -> None:
        _budget.reset(self._token)


def current() -> Budget:
    """The budget in force; outside of a rendering, a small one of its own."""
    return _budget.get() or Budget(seconds=1.0)
