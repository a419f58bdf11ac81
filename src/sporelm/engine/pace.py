"""How many tokens of prompts join a step in which others wait for their next token."""

STALL = 1.0  # of the time that a step without prompts takes, so much more at most, about
SMOOTHING = 0.2  # weight of the newest measurement
FIRST = 64  # tokens, before anything was measured
LEAST = 8


class Pace:
    """Learns from the times of steps how long decoding takes, and what a token of a prompt adds to it.

    So nobody's stream stalls while a long prompt is computed, on a slow machine as on a fast one. What is computed does
    not depend on it: chunks of any size give the same numbers.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.decode_s = 0.0  # of a step that only decodes
        self.token_s = 0.0  # more for each token of a prompt

    def allowed(self) -> int:
        """Tokens of prompts for the next step in which others decode."""
        if self.fixed is not None:
            return self.fixed
        if not self.decode_s or not self.token_s:
            return FIRST
        return max(LEAST, int(STALL * self.decode_s / self.token_s))

    def observe(self, decoding: int, tokens: int, seconds: float) -> None:
        """A step of `decoding` requests that decoded, and `tokens` of prompts, took `seconds`. Changes the pace."""
        if decoding and not tokens:
            self.decode_s = moved(self.decode_s, seconds, SMOOTHING)
        elif decoding and seconds > self.decode_s > 0:
            self.token_s = moved(self.token_s, (seconds - self.decode_s) / tokens, SMOOTHING)


def moved(old: float | None, new: float, weight: float) -> float:
    """A mean of measurements, with a newest one that has this weight; that one alone if there was none."""
    return old + weight * (new - old) if old else new
