"""Stop strings in streamed text."""

from collections import deque
from collections.abc import Sequence

from sporelm.errors import RequestError


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces of any size.

    What could still become a stop string is held back, and nothing else. Of several the one that is complete first
    counts, and of those that are complete at once the longest; so the pieces' sizes make no difference.

    The strings form an Aho-Corasick automaton (Aho and Corasick, 1975): its state is the longest end of the text so
    far that begins a stop string, and each character costs the same on average.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises RequestError for stop strings that are empty or not texts."""
        texts = [stops] if isinstance(stops, str) else list(stops)
        for index, stop in enumerate(texts):
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop string {index} is {stop!r:.60}; it must be a text that is not empty")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop: list[str | None] = [None]
        self._fallback = [0]
        for stop in texts:
            self._insert(stop)
        self._link()
        self._state = 0
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that ended it, if one did.

        The stop string itself and what follows it are never shown. After the end every push gives ("", stop).
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
                seen = self._held + text[: position + 1]
                self._held = ""
                return seen[: len(seen) - len(stop)], stop
        self._state = state
        seen = self._held + text
        shown = len(seen) - self._depth[state]
        self._held = seen[shown:]
        return seen[:shown], None

    def flush(self) -> str:
        """What was held back, at the end of the text; empty after a stop."""
        held, self._held, self._state = self._held, "", 0
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
        """Where each state falls back to: the longest proper end of it that is a state too. Breadth first."""
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
