"""ApiCall: one request on its way to its answer."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from starlette.requests import Request

from sporelm.errors import ContextOverflow, SporeError
from sporelm.serve.chat.answer_stream import AnswerStream, start_answers
from sporelm.serve.http.api_errors import (
    ApiError,
    api_error_from,
    model_load_error,
    overflow_message,
    parameter_at_fault,
)
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.http.path_redaction import model_paths, replace_paths, spec_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sporelm.api.text_generation import TextGeneration
    from sporelm.serve.model_pool.served_model import ServedModel
    from sporelm.serve.server_state import Server

LARGE_BYTES = 8192  # of a body, from which on work that grows with it runs in a thread


class ApiCall:
    """One request: its key, its deadline, and what it has opened."""

    request: Request

    def __init__(self, server: "Server", key: ApiKey, resources: AsyncExitStack, request_id: str) -> None:
        """A call by the server itself, without an HTTP request. Closing `resources` ends all work for it."""
        self.server = server
        self.key = key
        self.resources = resources
        self.request_id = request_id
        self.parameters: Collection[str] = ()  # the fields that the body may have
        self.path_names: dict[str, str] = {}  # what errors say instead of the paths of the models in use
        self.is_large = False  # whether the body is, or the chat that was rendered from it
        self.deadline = asyncio.get_running_loop().time() + self.server.config.request_seconds

    @classmethod
    def from_request(cls, request: Request) -> "ApiCall":
        state = request.state
        call = cls(request.app.state.server, state.key, state.resources, state.request_id)
        call.request = request
        return call

    async def model(self, name: str | None = None) -> "ServedModel":
        """Return a model, held until the call ends. Raises ApiError: 404, or 500 and 503 if it cannot be loaded."""
        spec = self.server.models.spec(name)
        try:
            model = await self.resources.enter_async_context(self.server.models.use(name))
        except SporeError as error:
            raise model_load_error(spec.name, spec_paths(spec), error) from error
        self.path_names |= model_paths(model, spec)
        return model

    def error_from(self, error: BaseException) -> ApiError:
        """Return the response to an error: without paths of files, and with the parameter at fault, if known."""
        response = api_error_from(error)
        if isinstance(error, ContextOverflow):
            response.message = overflow_message(error, accepts_roll="roll" in self.parameters)
        if response.status == 400 and response.param is None:
            response.param = parameter_at_fault(response, self.parameters)
        response.message = replace_paths(response.message, self.path_names)
        return response

    async def start(self, model: "ServedModel", answers: "Sequence[TextGeneration]") -> list[AnswerStream]:
        """Start answers, which are cancelled when the call ends. Raises as `start_answers`, and ApiError for more than
        the queue can hold."""
        max_waiting = self.server.config.max_waiting
        if len(answers) > max_waiting:
            raise ApiError(
                400, f"{len(answers)} answers to one prompt are too many: {max_waiting} may wait (max_waiting)"
            )
        streams = await start_answers(model, answers)
        for stream in streams:
            self.resources.callback(self._end, stream)
            self.server.running_answers.add(stream)
        return streams

    def _end(self, stream: AnswerStream) -> None:
        self.server.running_answers.discard(stream)
        stream.close()

    def check_chat_size(self, num_messages: int, max_tokens: int | None) -> None:
        """Raise ApiError for a chat of more messages, or an answer of more tokens, than this server takes."""
        config = self.server.config
        if num_messages > config.max_messages:
            raise ApiError(
                400,
                f"{num_messages} messages are too many: at most {config.max_messages} (max_messages)",
                param="messages" if "messages" in self.parameters else None,
            )
        if config.max_tokens is not None and max_tokens is not None and max_tokens > config.max_tokens:
            raise ApiError(
                400,
                f"{max_tokens} tokens of an answer are too many: at most {config.max_tokens} are allowed (max_tokens)",
                param="max_tokens" if "max_tokens" in self.parameters else None,
            )

    def answer_limit(self, max_context: int, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Return the most tokens of an answer: as requested, or as the context and the server allow."""
        if max_tokens is not None:
            return max_tokens
        room = max(1, max_context - num_prompt_tokens + 1)
        server_limit = self.server.config.max_tokens
        return room if server_limit is None else min(room, server_limit)

    def before_deadline(self) -> asyncio.Timeout:
        """Return a context that ends with TimeoutError at the call's deadline."""
        return asyncio.timeout_at(self.deadline)

    def timeout_error(self) -> ApiError:
        seconds = self.server.config.request_seconds
        message = f"the answer was not finished in {seconds:g} s, which is the limit (request_seconds): ask for less"
        return ApiError(504, message, "timeout_error", "request_timeout")
