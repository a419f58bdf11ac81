"""Log probabilities of tokens, as OpenAI's APIs write them."""

import msgspec

from sporelm.api.answer import Answer
from sporelm.api.completion import Piece
from sporelm.serve.answering import AnswerStream
from sporelm.serve.served_model import ServedModel

LEAST = -9999.0  # what is written for a token that cannot be: JSON has no infinity


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
    """Of a completion: one entry a token; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(model: ServedModel, answer: Answer, begin: int, end: int | None = None) -> list[TokenLogprob]:
    """Of an answer's tokens from `begin` to `end`, the token that ends it left out."""
    tokenizer, request = model.llm.llm.tokenizer, answer.request
    ids = answer.token_ids[begin:end]
    found = []
    for token, score in zip(ids, request.scores[begin : begin + len(ids)], strict=True):
        if token in request.stop_ids:
            continue
        data = tokenizer.token_bytes(token)
        top = []
        for other, logprob in score.top.items():
            its = tokenizer.token_bytes(other)
            top.append(TopLogprob(its.decode("utf-8", "replace"), real(logprob), list(its)))
        found.append(TokenLogprob(data.decode("utf-8", "replace"), real(score.logprob), list(data), top))
    return found


class Scores:
    """The log probabilities of an answer's tokens as they come; none where they are not `wanted`."""

    def __init__(self, model: ServedModel, stream: AnswerStream, *, wanted: bool) -> None:
        self.wanted, self._model, self._answer, self._seen = wanted, model, stream.answer, 0

    def of(self, piece: Piece) -> list[TokenLogprob] | None:
        """Those of a piece's tokens; None for no tokens."""
        if not self.wanted:
            return None
        begin = self._seen
        self._seen += len(piece.token_ids)
        return chat_logprobs(self._model, self._answer, begin, self._seen) or None

    def whole(self) -> list[TokenLogprob] | None:
        """Those of all tokens."""
        return chat_logprobs(self._model, self._answer, 0) if self.wanted else None


def real(value: float) -> float:
    """A log probability that JSON can hold."""
    return max(float(value), LEAST)


class TextScores:
    """The same as /v1/completions writes it; the text of the answer begins at `offset`."""

    def __init__(self, model: ServedModel, answer: Answer, offset: int) -> None:
        self._tokenizer, self._answer = model.llm.llm.tokenizer, answer
        self._seen, self._offset = 0, offset

    def next(self, count: int) -> TextLogprobs:
        """Those of the next `count` tokens, the token that ends the answer left out."""
        piece_of, request = self._tokenizer.id_to_piece, self._answer.request
        ids = self._answer.token_ids[self._seen : self._seen + count]
        scores = request.scores[self._seen : self._seen + len(ids)]
        self._seen += len(ids)
        found = TextLogprobs([], [], [], [])
        for token, score in zip(ids, scores, strict=True):
            if token in request.stop_ids:
                continue
            piece = piece_of(token)
            found.tokens.append(piece)
            found.token_logprobs.append(real(score.logprob))
            found.top_logprobs.append({piece_of(other): real(value) for other, value in score.top.items()})
            found.text_offset.append(self._offset)
            self._offset += len(piece)
        return found
