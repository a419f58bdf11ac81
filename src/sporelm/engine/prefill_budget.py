"""How many tokens of prompts join a step in which others wait for their next token."""

STALL = 1.0  # of the time that a step without prompts takes, so much more at most, about
UNNOTICED = 0.05  # seconds of a pause that no reader notices, which a crowd of beginners may make
CROWD = 0.25  # of those that decode, so many that begin are one
SMOOTHING = 0.2  # weight of the newest measurement
FIRST = 64  # tokens, before anything was measured
LEAST = 8


class PrefillBudget:
    """Learns from the times of steps what one costs whatever it computes, and what each token adds to it.

    So nobody's stream stalls while a long prompt is computed, on a slow machine as on a fast one. But where many begin
    at once, small chunks would pay a step's cost so often that all of them, and those who decode, end later. What is
    computed does not depend on it: chunks of any size give the same numbers.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.step_s = 0.0  # of any step
        self.token_s = 0.0  # more for each token, of prompts or of answers

    def allowed(self, decoding: int = 1, beginning: int = 0) -> int:
        """Tokens of prompts for the next step in which `decoding` others decode, while so many more are `beginning`:
        they run or could run, and wait for their first token."""
        if self.fixed is not None:
            return self.fixed
        if not self.token_s:
            return FIRST
        pause = STALL * (self.step_s + decoding * self.token_s)
        if beginning >= CROWD * decoding:
            pause = max(pause, UNNOTICED)
        return max(LEAST, int(pause / self.token_s))

    def estimate_seconds(self, tokens: int) -> float:
        """About what a step of so many tokens takes; 0 before anything was measured."""
        return self.step_s + tokens * self.token_s

    def observe(self, decoding: int, tokens: int, seconds: float) -> None:
        """A step of `decoding` requests that decoded, and `tokens` of prompts, took `seconds`. Changes the pace."""
        if not tokens:
            self.step_s = moved(self.step_s, max(0.0, seconds - decoding * self.token_s), SMOOTHING)
        elif seconds > self.step_s:
            self.token_s = moved(self.token_s, (seconds - self.step_s) / (decoding + tokens), SMOOTHING)


def moved(old: float | None, new: float, weight: float) -> float:
    """A mean of measurements, with a newest one that has this weight; that one alone if there was none."""
    return old + weight * (new - old) if old else new
