"""Finds stop strings in streamed text."""

from collections import deque
from collections.abc import Sequence

from sporelm.errors import RequestError


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces of any size.

    Only text that could still become a stop string is held back. The stop string that is complete first wins; among
    those complete at the same character, the longest. So the sizes of the pieces do not matter.

    The strings form an Aho-Corasick automaton (Aho and Corasick, 1975): its state is the longest suffix of the text
    that is a prefix of a stop string, and the average cost of a character is constant.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises RequestError for a stop string that is empty or not a string."""
        texts = [stops] if isinstance(stops, str) else list(stops)
        for index, stop in enumerate(texts):
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop string {index} is {stop!r:.60}; it must be a string that is not empty")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop: list[str | None] = [None]
        self._fallback = [0]
        for stop in texts:
            self._insert(stop)
        self._link()
        self._state = 0
        self._held_text = ""
        self.stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that is safe to show, and the stop string that ended it, if one did.

        The stop string itself and the text after it are never shown. After the end every push returns ("", stop).
        """
        if self.stopped is not None:
            return "", self.stopped
        if len(self._next) == 1:
            return text, None
        state = self._state
        for position, character in enumerate(text):
            state = self._step(state, character)
            stop = self._stop[state]
            if stop is not None:
                self.stopped = stop
                pending = self._held_text + text[: position + 1]
                self._held_text = ""
                return pending[: len(pending) - len(stop)], stop
        self._state = state
        pending = self._held_text + text
        length = len(pending) - self._depth[state]
        self._held_text = pending[length:]
        return pending[:length], None

    def flush(self) -> str:
        """Return the text held back at the end; empty after a stop."""
        held = self._held_text
        self._held_text = ""
        self._state = 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._stop.append(None)
                self._fallback.append(0)
            state = following
        self._stop[state] = stop

    def _link(self) -> None:
        """Compute the fallback of each state: its longest proper suffix that is a state too. Breadth first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                self._fallback[following] = self._step(self._fallback[state], character)
                if self._stop[following] is None:
                    self._stop[following] = self._stop[self._fallback[following]]
                queue.append(following)

    def _step(self, state: int, character: str) -> int:
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]
