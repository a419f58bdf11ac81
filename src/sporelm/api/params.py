"""What a caller can ask of an answer."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from sporelm.engine import Sampling
from sporelm.engine.request import size_of, token_ids, whole_number
from sporelm.engine.sampling.params import MOST_WHOLE
from sporelm.errors import RequestError, shown
from sporelm.text.grammar import Grammar

MOST_STOPS = 64
LONGEST_STOP = 4096  # characters
MOST_ANSWERS = 128
LONGEST_SALT = 256
MOST_PRIORITY = 1 << 20
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Raises RequestError for a value out of its range.

    What is not said here is said, with the order in which all is done, at `sporelm.engine.Sampling`.

    max_tokens           ids at most
    temperature          0 is greedy (ties: the lowest id)
    top_k, top_p, min_p  what is left to draw, applied in this order before the temperature; top_k 0 and -1 keep all
    repetition_penalty   divides the scores of tokens seen before
    seed                 same seed, same text; None and -1 draw a random one, reported in the completion; other negative
                         seeds count modulo 2^64
    logprobs             report each token's log probability and so many alternatives'; None: do not
    dry_breakers         texts: DRY's repetitions do not reach across a token that has one of them
    min_tokens           ids before which the model's ends, and `stop_token_ids`, are not taken
    stop                 texts before which the answer ends
    stop_token_ids       ids after which it ends, besides the model's own
    ignore_eos           go on after the model's end-of-text token
    roll                 when the context is full, leave out what stands after its first quarter and go on, instead of
                         ending with "length"; the tokens after the cut are computed anew. The completion says how many
                         were left out (`dropped_tokens`)
    adapter              the name of an adapter (LoRA) that is loaded; None: the model as it is
    grammar              what the answer must look like: a JSON schema, a regular expression, ... (`Grammar`)
    n                    answers to each prompt; all but the first are the completion's `alternatives`
    best_of              answers that are made, of which the n with the greatest mean log probability are given
    salt                 what is computed of a prompt is found again by requests of the same salt alone; give each user
                         one where answers must not tell, by their time, what others have asked
    priority             requests of a lower one are served first; among equals those whose salt has the fewest running
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
    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    grammar: Grammar | None = None
    adapter: str | None = None
    roll: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        if not 1 <= whole_number("max_tokens", self.max_tokens) <= MOST_WHOLE:
            raise RequestError(f"max_tokens is {shown(self.max_tokens)}: it must be from 1 to {MOST_WHOLE}")
        if whole_number("min_tokens", self.min_tokens) > self.max_tokens:
            given = shown(self.min_tokens)
            raise RequestError(f"min_tokens is {given}: it must be at most max_tokens, {self.max_tokens}")
        for name in ("ignore_eos", "roll"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {shown(getattr(self, name))}: it must be True or False")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar is {shown(self.grammar)}: it must be a Grammar, or None")
        object.__setattr__(self, "stop", texts("stop", self.stop, MOST_STOPS))
        object.__setattr__(self, "dry_breakers", texts("dry_breakers", self.dry_breakers, MOST_STOPS))
        object.__setattr__(self, "stop_token_ids", tuple(token_ids("stop_token_ids", self.stop_token_ids)))
        if not 1 <= whole_number("n", self.n) <= MOST_ANSWERS:
            raise RequestError(f"n is {shown(self.n)}: it must be from 1 to {MOST_ANSWERS}")
        if not self.n <= whole_number("best_of", self.made) <= MOST_ANSWERS:
            raise RequestError(f"best_of is {shown(self.best_of)}: it must be from n, {self.n}, to {MOST_ANSWERS}")
        object.__setattr__(self, "priority", whole_number("priority", self.priority))
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            raise RequestError(
                f"priority is {shown(self.priority)}: it must be from {-MOST_PRIORITY} to {MOST_PRIORITY}"
            )
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise RequestError(f"adapter is {shown(self.adapter)}: it must be the name of one that is loaded, or None")
        if not isinstance(self.salt, str) or len(self.salt) > LONGEST_SALT:
            raise RequestError(f"salt is {shown(self.salt)}: it must be a text of at most {LONGEST_SALT} characters")
        # As in llama.cpp and vLLM, seed -1 is a random seed; as in vLLM, top_k -1 keeps all tokens.
        if self.seed is not None:
            seed = whole_number("seed", self.seed)
            if not MIN_SEED <= seed <= MAX_SEED:
                raise RequestError(f"seed is {shown(seed)}: it must be from {MIN_SEED} to {MAX_SEED}")
            object.__setattr__(self, "seed", None if seed == -1 else seed % (MAX_SEED + 1))
        top_k = whole_number("top_k", self.top_k)
        if not -1 <= top_k <= MOST_WHOLE:
            raise RequestError(f"top_k is {shown(top_k)}: it must be from 0 to {MOST_WHOLE}, or -1 for all")
        object.__setattr__(self, "top_k", max(0, top_k))
        self.sampling(0 if self.seed is None else self.seed)

    @property
    def made(self) -> int:
        """Answers that are made of a prompt."""
        return self.n if self.best_of is None else self.best_of

    def sampling(self, seed: int, dry_breakers: frozenset[int] = frozenset()) -> Sampling:
        """The part that the engine's sampler needs; `dry_breakers` are the ids of tokens that have such a text."""
        shared = {name: getattr(self, name) for name in _SHARED}
        if self.made > self.n and self.logprobs is None:
            shared["logprobs"] = 0  # to compare them by
        return Sampling(**shared, seed=seed, dry_breakers=dry_breakers)

    def chosen_seed(self) -> int:
        """The seed asked for, or a random one that is short enough to be typed."""
        return secrets.randbits(32) if self.seed is None else self.seed


_SHARED = [each.name for each in fields(Sampling) if each.name not in ("seed", "dry_breakers")]


def texts(name: str, given: str | Sequence[str], most: int) -> tuple[str, ...]:
    """A text or a list of texts as a tuple. Raises RequestError for anything else, for an empty text, one that is too
    long, or too many."""
    if not isinstance(given, str | Sequence):
        raise RequestError(f"{name} is {shown(given)}: it must be a text or a list of texts")
    if not isinstance(given, str) and size_of(given) > most:
        raise RequestError(f"{name} has {size_of(given)} texts: at most {most} are taken")
    found = (given,) if isinstance(given, str) else tuple(given)
    if any(not isinstance(text, str) or not text for text in found):
        raise RequestError(f"a text of {name} is empty or no text: it would be found everywhere")
    longest = max(map(len, found), default=0)
    if longest > LONGEST_STOP:
        raise RequestError(f"a text of {name} has {longest} characters: at most {LONGEST_STOP} are taken")
    return found


def single(params: SamplingParams | None) -> SamplingParams:
    """Parameters of an answer that comes in pieces. Raises RequestError if they ask for several."""
    if isinstance(params, SamplingParams) and params.made > 1:
        raise RequestError(f"n is {params.made}: an answer that comes in pieces is one; use generate for several")
    return SamplingParams() if params is None else params
