"""The prefill budget: how many prompt tokens join a step in which other requests decode (chunked prefill)."""

MAX_STALL = 1.0  # by this share, about, prompt tokens may prolong a step
UNNOTICED_SECONDS = 0.05  # a pause that readers do not notice, allowed where many prompts begin at once
CROWD = 0.25  # prompts that begin, as a share of the requests that decode, from which they are many
SMOOTHING = 0.2  # weight of the newest measurement
INITIAL_TOKENS = 64  # before anything was measured
MIN_TOKENS = 8


class PrefillBudget:
    """Learns from the times of steps what each step costs, and what each token adds.

    So no stream stalls while a long prompt is computed, on a slow machine as on a fast one. But where many prompts
    begin at once, small chunks would pay a step's cost so often that all requests would end later. Results do not
    depend on the budget: chunks of any size give the same numbers.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.step_seconds = 0.0  # of any step
        self.token_seconds = 0.0  # added by each token, of prompts or of answers

    def num_allowed(self, num_decoding: int = 1, num_beginning: int = 0) -> int:
        """Return how many prompt tokens may join the next step, in which `num_decoding` requests decode.

        `num_beginning`: requests that run or could run, and wait for their first token.
        """
        if self.fixed is not None:
            return self.fixed
        if not self.token_seconds:
            return INITIAL_TOKENS
        pause = MAX_STALL * (self.step_seconds + num_decoding * self.token_seconds)
        if num_beginning >= CROWD * num_decoding:
            pause = max(pause, UNNOTICED_SECONDS)
        return max(MIN_TOKENS, int(pause / self.token_seconds))

    def estimate_seconds(self, num_tokens: int) -> float:
        """Return about how long a step of `num_tokens` takes; 0 before anything was measured."""
        return self.step_seconds + num_tokens * self.token_seconds

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Note how long a step took. Changes the budget."""
        if not num_prompt_tokens:
            step_seconds = max(0.0, seconds - num_decoding * self.token_seconds)
            self.step_seconds = moving_average(self.step_seconds, step_seconds, SMOOTHING)
        elif seconds > self.step_seconds:
            token_seconds = (seconds - self.step_seconds) / (num_decoding + num_prompt_tokens)
            self.token_seconds = moving_average(self.token_seconds, token_seconds, SMOOTHING)


def moving_average(old: float | None, new: float, weight: float) -> float:
    """Return the mean of measurements after a new one of this weight; the new one if there was none before."""
    return old + weight * (new - old) if old else new
