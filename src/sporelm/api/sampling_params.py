"""The parameters of one request: how tokens are sampled and when generation stops."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from sporelm.engine import Sampling
from sporelm.engine.request import length_of, parse_int, parse_token_ids
from sporelm.engine.sampling.sampler_params import MAX_INT
from sporelm.errors import RequestError, safe_repr
from sporelm.text.grammar.grammar import Grammar

MAX_STOPS = 64
MAX_STOP_CHARS = 4096
MAX_COMPLETIONS = 128
MAX_SALT_CHARS = 256
MAX_PRIORITY = 1 << 20
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled and when generation stops. Raises RequestError for a value out of range.

    `sporelm.engine.Sampling` documents the other fields and the order in which the filters are applied.

    max_tokens           maximum number of generated tokens
    temperature          0 is greedy (ties: the lowest id)
    top_k, top_p, min_p  filters, applied in this order before the temperature; top_k 0 and -1 keep all tokens
    repetition_penalty   divides the logits of tokens seen before
    seed                 same seed, same text; None and -1 draw a random seed, which the completion reports; other
                         negative seeds count modulo 2^64
    logprobs             report the log probabilities of each token and of this number of alternatives; None: none
    dry_breakers         texts: the DRY penalty does not match a repetition across a token that contains one
    min_tokens           number of tokens before which the model's end tokens and `stop_token_ids` are masked
    stop                 texts before which generation ends
    stop_token_ids       ids after which generation ends, besides the model's own end tokens
    ignore_eos           continue after the model's end-of-text token
    roll                 context shift: when the context is full, drop the tokens after its first quarter and continue,
                         instead of ending with "length"; the remaining tokens after the gap are recomputed. The
                         completion reports how many were dropped (`dropped_tokens`)
    adapter              name of a loaded LoRA adapter; None: the model without one
    grammar              constrains the answer: a JSON schema, a regular expression, ... (`Grammar`)
    n                    number of completions of each prompt; all but the first are its `alternatives`
    best_of              number of completions to generate; the n with the highest mean log probability are returned
    salt                 cache salt: only requests with the same salt share cached prefixes. Give each user one where
                         response times must not reveal the prompts of others
    priority             requests with a lower value run first; among equals, the salt with the fewest running requests
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
        if not 1 <= parse_int("max_tokens", self.max_tokens) <= MAX_INT:
            raise RequestError(f"max_tokens is {safe_repr(self.max_tokens)}: it must be from 1 to {MAX_INT}")
        if parse_int("min_tokens", self.min_tokens) > self.max_tokens:
            min_tokens = safe_repr(self.min_tokens)
            raise RequestError(f"min_tokens is {min_tokens}: it must be at most max_tokens, {self.max_tokens}")
        for name in ("ignore_eos", "roll"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {safe_repr(getattr(self, name))}: it must be True or False")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar is {safe_repr(self.grammar)}: it must be a Grammar, or None")
        object.__setattr__(self, "stop", parse_texts("stop", self.stop, MAX_STOPS))
        object.__setattr__(self, "dry_breakers", parse_texts("dry_breakers", self.dry_breakers, MAX_STOPS))
        object.__setattr__(self, "stop_token_ids", tuple(parse_token_ids("stop_token_ids", self.stop_token_ids)))
        if not 1 <= parse_int("n", self.n) <= MAX_COMPLETIONS:
            raise RequestError(f"n is {safe_repr(self.n)}: it must be from 1 to {MAX_COMPLETIONS}")
        if not self.n <= parse_int("best_of", self.num_sequences) <= MAX_COMPLETIONS:
            raise RequestError(
                f"best_of is {safe_repr(self.best_of)}: it must be from n, {self.n}, to {MAX_COMPLETIONS}"
            )
        object.__setattr__(self, "priority", parse_int("priority", self.priority))
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise RequestError(
                f"priority is {safe_repr(self.priority)}: it must be from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise RequestError(
                f"adapter is {safe_repr(self.adapter)}: it must be the name of a loaded adapter, or None"
            )
        if not isinstance(self.salt, str) or len(self.salt) > MAX_SALT_CHARS:
            raise RequestError(
                f"salt is {safe_repr(self.salt)}: it must be a string of at most {MAX_SALT_CHARS} characters"
            )
        # As in llama.cpp and vLLM, seed -1 is a random seed; as in vLLM, top_k -1 keeps all tokens.
        if self.seed is not None:
            seed = parse_int("seed", self.seed)
            if not MIN_SEED <= seed <= MAX_SEED:
                raise RequestError(f"seed is {safe_repr(seed)}: it must be from {MIN_SEED} to {MAX_SEED}")
            object.__setattr__(self, "seed", None if seed == -1 else seed % (MAX_SEED + 1))
        top_k = parse_int("top_k", self.top_k)
        if not -1 <= top_k <= MAX_INT:
            raise RequestError(f"top_k is {safe_repr(top_k)}: it must be from 0 to {MAX_INT}, or -1 for all")
        object.__setattr__(self, "top_k", max(0, top_k))
        self.sampling(0 if self.seed is None else self.seed)

    @property
    def num_sequences(self) -> int:
        """Number of completions that are generated for a prompt."""
        return self.n if self.best_of is None else self.best_of

    def sampling(self, seed: int, dry_breakers: frozenset[int] = frozenset()) -> Sampling:
        """Return the engine's parameters; `dry_breakers` are the ids of tokens that contain a breaker text."""
        values = {name: getattr(self, name) for name in _SHARED_FIELDS}
        if self.num_sequences > self.n and self.logprobs is None:
            values["logprobs"] = 0  # completions are ranked by them
        return Sampling(**values, seed=seed, dry_breakers=dry_breakers)

    def resolve_seed(self) -> int:
        """Return the requested seed, or a random one that is short enough to type."""
        return secrets.randbits(32) if self.seed is None else self.seed


_SHARED_FIELDS = [each.name for each in fields(Sampling) if each.name not in ("seed", "dry_breakers")]


def parse_texts(name: str, value: str | Sequence[str], max_texts: int) -> tuple[str, ...]:
    """Return a string or a list of strings as a tuple.

    Raises RequestError for anything else, for too many strings, and for an empty or too long one.
    """
    if not isinstance(value, str | Sequence):
        raise RequestError(f"{name} is {safe_repr(value)}: it must be a string or a list of strings")
    if not isinstance(value, str) and length_of(value) > max_texts:
        raise RequestError(f"{name} has {length_of(value)} strings: at most {max_texts} are allowed")
    texts = (value,) if isinstance(value, str) else tuple(value)
    if any(not isinstance(text, str) or not text for text in texts):
        raise RequestError(f"{name} must contain strings that are not empty: an empty one would match everywhere")
    longest = max(map(len, texts), default=0)
    if longest > MAX_STOP_CHARS:
        raise RequestError(f"{name} has a string of {longest} characters: at most {MAX_STOP_CHARS} are allowed")
    return texts


def check_single(params: SamplingParams | None) -> SamplingParams:
    """Return the parameters of a stream, by default the default ones. Raises RequestError if they ask for several."""
    if isinstance(params, SamplingParams) and params.num_sequences > 1:
        raise RequestError(f"n is {params.num_sequences}: a stream has one completion; use generate for several")
    return SamplingParams() if params is None else params
