"""The sampling options of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sporelm.errors import RequestError, safe_repr

MAX_SEED = (1 << 64) - 1
MAX_INT = (1 << 31) - 1
MAX_LOGPROBS = 100
MAX_BIASED_TOKENS = 1024
NOTHING: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Sampling:
    """Sampling options, in the order in which they are applied. Raises RequestError for a value out of its range.

    logit_bias          added to the logits of these tokens (-100 to 100)
    repetition_penalty  logits of tokens seen in prompt and answer are divided by it, or multiplied if negative
                        (Keskar et al. 2019)
    presence_penalty    subtracted from the logits of tokens that the answer has (OpenAI's definition)
    frequency_penalty   the same for each time that the answer has them
    dry_multiplier      times dry_base ** (n - dry_allowed_length), subtracted from the logit of a token that would
                        prolong a repetition of n tokens; 0 is off. Repetitions are searched in the last dry_range
                        tokens (0: all), and do not reach across dry_breakers ("Don't Repeat Yourself", p-e-w 2024)
    min_tokens          stop ids are not sampled before this number of tokens
    temperature         0 is greedy, and nothing below counts; otherwise logits are divided by it last
    mirostat            1 or 2: instead of the following options, after the temperature, keep tokens of at most mu bits
                        of surprise; a controller moves mu by mirostat_eta towards a mean of mirostat_tau (Basu et al.
                        2021)
    top_k               keep the k greatest logits; 0 keeps all
    typical_p           of those, keep the fewest that come nearest to the expected surprise and whose probability
                        reaches typical_p (Meister et al. 2022)
    top_p               of those, keep the fewest of the greatest whose probability reaches top_p (Holtzman et al. 2020)
    min_p               of those, keep tokens of at least min_p times the probability of the likeliest
    xtc_probability     with this probability, of the tokens with at least xtc_threshold, drop all but the least likely
                        ("Exclude Top Choices", p-e-w 2024)
    seed                of the generator
    logprobs            report the logarithm of each token's probability, and of this number of alternatives; None: off.
                        They are the model's own: of the logits before anything above
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_breakers: frozenset[int] = frozenset()
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: NOTHING)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _REAL:
            within(name, getattr(self, name), low, high)
        for name, lowest, highest in _WHOLE:
            whole(name, getattr(self, name), lowest, highest)
        for name in ("top_p", "typical_p"):
            if getattr(self, name) == 0:
                raise RequestError(f"{name} is 0: it must be above 0, at most 1")
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias is {safe_repr(self.logit_bias)}: it must say, by token id, what is added")
        if len(self.logit_bias) > MAX_BIASED_TOKENS:
            raise RequestError(f"logit_bias has {len(self.logit_bias)} tokens: at most {MAX_BIASED_TOKENS} are taken")
        for token, bias in self.logit_bias.items():
            whole("a token of logit_bias", token, 0, MAX_INT)
            within(f"logit_bias of token {token}", bias, -100.0, 100.0)
        if self.mirostat:
            self._check_mirostat()
        if self.xtc_probability and self.xtc_threshold > 0.5:
            raise RequestError(
                f"xtc_threshold is {self.xtc_threshold}: above 0.5 no two tokens reach it, so XTC does nothing"
            )

    def _check_mirostat(self) -> None:
        """Raise RequestError for options that cannot be combined with mirostat."""
        if self.temperature == 0:
            raise RequestError("mirostat needs a temperature above 0: at 0 the greatest logit is taken")
        cuts = {"min_p": self.min_p, "typical_p": 1 - self.typical_p, "xtc_probability": self.xtc_probability}
        if given := [name for name, value in cuts.items() if value]:
            raise RequestError(f"mirostat keeps tokens in its own way: leave out {' and '.join(given)}, or mirostat")

    @property
    def is_argmax(self) -> bool:
        """Whether the argmax is the result."""
        return self.temperature == 0 and not self.has_processors and self.logprobs is None

    @property
    def has_processors(self) -> bool:
        """Whether logits processors are needed."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens count."""
        nothing = (1.0, 0.0, 0.0, 0.0)
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty, self.dry_multiplier)
        return penalties != nothing


_REAL = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("dry_multiplier", 0.0, 100.0),
    ("dry_base", 1.0, 100.0),
    ("mirostat_tau", 0.0, 100.0),
    ("mirostat_eta", 0.0, 100.0),
)
_WHOLE = (
    ("top_k", 0, MAX_INT),
    ("seed", 0, MAX_SEED),
    ("dry_allowed_length", 1, MAX_INT),
    ("dry_range", 0, MAX_INT),
    ("mirostat", 0, 2),
    ("min_tokens", 0, MAX_INT),
)


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise RequestError unless `value` is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} is {safe_repr(value)}: it must be a number from {low:g} to {high:g}")


def whole(name: str, value: int, low: int, high: int) -> None:
    """Raise RequestError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is {safe_repr(value)}: it must be a whole number from {low} to {high}")
