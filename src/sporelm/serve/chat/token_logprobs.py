"""Log probabilities of tokens, in the formats of OpenAI's APIs."""

import msgspec

from sporelm.api.completion import Piece
from sporelm.api.text_generation import TextGeneration
from sporelm.serve.chat.answer_stream import AnswerStream
from sporelm.serve.model_pool.served_model import ServedModel

MIN_LOGPROB = -9999.0  # of an impossible token: JSON has no infinity


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class TextLogprobs(msgspec.Struct):
    """The log probabilities of /v1/completions: one entry a token; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(model: ServedModel, answer: TextGeneration, begin: int, end: int | None = None) -> list[TokenLogprob]:
    """Return the log probabilities of an answer's tokens from `begin` to `end`, end tokens left out."""
    tokenizer = model.llm.tokenizer
    entries = []
    for token, scores in answer.scored_tokens(begin, end):
        data = tokenizer.token_bytes(token)
        top = []
        for other, logprob in scores.top.items():
            other_data = tokenizer.token_bytes(other)
            top.append(TopLogprob(other_data.decode("utf-8", "replace"), finite(logprob), list(other_data)))
        entries.append(TokenLogprob(data.decode("utf-8", "replace"), finite(scores.logprob), list(data), top))
    return entries


class ChatLogprobs:
    """The log probabilities of an answer's tokens, piece by piece; None unless they are `enabled`."""

    def __init__(self, model: ServedModel, stream: AnswerStream, *, enabled: bool) -> None:
        self.enabled = enabled
        self._model = model
        self._answer = stream.answer
        self._num_read = 0

    def of_piece(self, piece: Piece) -> list[TokenLogprob] | None:
        """Return those of the next piece; None for a piece without tokens."""
        if not self.enabled:
            return None
        begin = self._num_read
        self._num_read += len(piece.token_ids)
        return chat_logprobs(self._model, self._answer, begin, self._num_read) or None

    def of_answer(self) -> list[TokenLogprob] | None:
        """Return those of all tokens."""
        return chat_logprobs(self._model, self._answer, 0) if self.enabled else None


def finite(logprob: float) -> float:
    """Return a log probability that JSON can represent."""
    return max(float(logprob), MIN_LOGPROB)


class CompletionLogprobs:
    """The log probabilities of an answer of /v1/completions, whose text begins at `offset`."""

    def __init__(self, model: ServedModel, answer: TextGeneration, offset: int) -> None:
        self._tokenizer = model.llm.tokenizer
        self._answer = answer
        self._num_read = 0
        self._offset = offset

    def next(self, count: int) -> TextLogprobs:
        """Return those of the next `count` tokens, end tokens left out."""
        piece_of = self._tokenizer.id_to_piece
        begin = self._num_read
        self._num_read = min(begin + count, len(self._answer.token_ids))
        logprobs = TextLogprobs([], [], [], [])
        for token, scores in self._answer.scored_tokens(begin, self._num_read):
            piece = piece_of(token)
            logprobs.tokens.append(piece)
            logprobs.token_logprobs.append(finite(scores.logprob))
            logprobs.top_logprobs.append({piece_of(other): finite(value) for other, value in scores.top.items()})
            logprobs.text_offset.append(self._offset)
            self._offset += len(piece)
        return logprobs
