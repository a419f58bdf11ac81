"""The budget of one rendering of a chat template: time, output, and intermediate values.

A template comes with a model file, so it may be hostile. Every operation whose result is larger than its operands is
charged here before it happens; every operation that repeats, or searches a value, is counted.
"""

import time
from collections.abc import ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from typing import Any

RENDER_SECONDS = 0.2  # of CPU time, for one rendering
MESSAGE_SECONDS = 0.0002  # in addition for each message: the slowest of the usual templates take a quarter of that
BASE_WORK = 16 << 20  # characters; other values count VALUE_WORK each
WORK_PER_INPUT = 64  # in addition for each character of the messages
BASE_OUTPUT = 4 << 20  # characters
OUTPUT_PER_INPUT = 16
MAX_INTEGER_BITS = 4096
VALUE_WORK = 16
_TICKS_PER_CLOCK_CHECK = 16

CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


class LimitReached(Exception):
    """A rendering would exceed its budget."""


class RenderBudget:
    """The budget of one rendering, for the thread that created it.

    input_size   characters in the messages
    seconds      of the thread's CPU time
    allowance    additional seconds for the number of messages; errors name only `seconds`, which an operator sets
    work         None: in proportion to the size of the messages
    """

    def __init__(
        self, input_size: int = 0, seconds: float = RENDER_SECONDS, work: int | None = None, allowance: float = 0.0
    ) -> None:
        self.remaining_work = BASE_WORK + WORK_PER_INPUT * input_size if work is None else work
        self.remaining_output = BASE_OUTPUT + OUTPUT_PER_INPUT * input_size
        self.seconds = seconds
        self.deadline = time.thread_time() + seconds + allowance
        self._ticks = 0

    def tick(self) -> None:
        """Count one step; raises LimitReached when the time is over."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CLOCK_CHECK == 0 and time.thread_time() > self.deadline:
            raise LimitReached(f"it takes more than {self.seconds:g} s of CPU time")

    def use(self, work: int) -> None:
        """Charge `work`, before the operation."""
        self.remaining_work -= work
        if self.remaining_work < 0:
            raise LimitReached("it makes more text and values than its messages can explain")
        self.tick()

    def emit(self, characters: int) -> None:
        """Count output."""
        self.remaining_output -= characters
        if self.remaining_output < 0:
            raise LimitReached("its output is longer than its messages can explain")
        self.tick()

    def use_value(self, value: Any) -> Any:
        """Charge a new value, and return it.

        A container is counted in depth each time another is built around it: so none can grow by sharing, and searching
        one never takes longer than the budget allows.
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
        """Charge `value` before it is written as text `times` times."""
        self.use(times * self.text_size(value))

    def use_look(self, value: Any) -> None:
        """Charge a search of `value`, or a comparison with it."""
        if isinstance(value, str):
            self.use(len(value) >> 3)
        elif isinstance(value, CONTAINERS):
            self.use(self.size(value, texts=True) >> 1)

    def text_size(self, value: Any) -> int:
        """Return an upper bound of the characters of `value` as text."""
        if isinstance(value, (str, bytes)):
            return len(value)
        return self.size(value, texts=True) if isinstance(value, CONTAINERS) else VALUE_WORK

    def size(self, value: Any, *, texts: bool) -> int:
        """Return the work of a container; with `texts`, including its characters. Stops if the budget is exceeded."""
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
            if total + VALUE_WORK * len(stack) > self.remaining_work:
                raise LimitReached("it makes larger values than its messages can explain")
        return total


_budget: ContextVar[RenderBudget | None] = ContextVar("template_budget", default=None)


class use_budget:
    """In this context, templates rendered by this thread are charged to `budget`."""

    def __init__(self, budget: RenderBudget) -> None:
        self._new_budget = budget

    def __enter__(self) -> RenderBudget:
        self._token = _budget.set(self._new_budget)
        return self._new_budget

    def __exit__(self, *_: object) -> None:
        _budget.reset(self._token)


def get_budget() -> RenderBudget:
    """Return the current budget; outside a rendering, a small new one."""
    return _budget.get() or RenderBudget(seconds=1.0)
