"""What a caller can ask of an answer."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.engine import Sampling
from sporelm.engine.request import token_ids, whole_number
from sporelm.errors import RequestError

MOST_STOPS = 64
LONGEST_SALT = 256


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Raises RequestError for a value out of its range.

    max_tokens           ids at most
    temperature          0 is greedy (ties: the lowest id)
    top_k, top_p, min_p  what is left to draw from, applied in this order before the temperature; top_k 0 keeps all
    repetition_penalty   divides the scores of tokens seen before
    seed                 same seed, same text; None draws one, which the completion names
    stop                 texts before which the answer ends
    stop_token_ids       ids after which it ends, besides the model's own
    ignore_eos           go on after the model's end-of-text token
    salt                 what is computed of a prompt is found again by requests of the same salt alone; give each user
                         one where answers must not tell, by their time, what others have asked
    """

    max_tokens: int = 256
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    salt: str = ""

    def __post_init__(self) -> None:
        if whole_number("max_tokens", self.max_tokens) < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}: it must be at least 1")
        if not isinstance(self.stop, str | Sequence):
            raise RequestError(f"stop is {self.stop!r:.60}: it must be a text or a list of texts")
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if len(stops) > MOST_STOPS:
            raise RequestError(f"{len(stops)} stop strings are given: at most {MOST_STOPS} are taken")
        if any(not isinstance(text, str) or not text for text in stops):
            raise RequestError("a stop string is empty or no text: it would end every answer at once")
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", tuple(token_ids("stop_token_ids", self.stop_token_ids)))
        if not isinstance(self.salt, str) or len(self.salt) > LONGEST_SALT:
            raise RequestError(f"salt is {self.salt!r:.60}: it must be a text of at most {LONGEST_SALT} characters")
        self.sampling(0 if self.seed is None else self.seed)

    def sampling(self, seed: int) -> Sampling:
        """The part that the engine's sampler needs."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=seed,
        )

    def chosen_seed(self) -> int:
        """The seed asked for, or a random one that is short enough to be typed."""
        return secrets.randbits(32) if self.seed is None else self.seed
