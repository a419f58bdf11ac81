"""SessionTurn: one answer in a session, or without one."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from sporelm.api.conversation import Conversation
from sporelm.api.isolation import render_isolated, take_images_isolated
from sporelm.api.sampling_params import SamplingParams
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import ModelFileError, RequestError
from sporelm.serve.chat.answer_stream import AnswerStream, run_in_thread_if
from sporelm.serve.chat.token_usage import check_finished, usage_of
from sporelm.serve.http.api_call import LARGE_BYTES, ApiCall
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.sse import encode_event
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.serve.sessions.session_pool import Session, close_conversation
from sporelm.text import RenderedPrompt

log = logging.getLogger("sporelm.serve")


class SessionTurn:
    """One answer of a conversation. `finish` releases the session."""

    def __init__(self, call: ApiCall, model: ServedModel, conversation: Conversation, session: Session | None) -> None:
        self.call = call
        self.model = model
        self.conversation = conversation
        self.session = session
        self.messages: list[dict[str, Any]] = conversation.messages
        self.prompt = RenderedPrompt()
        self.prompt_ids = list[int]()
        self.stream: AnswerStream | None = None
        self.is_kept = False
        self.finishing: asyncio.Future[None] | None = None

    async def start(self, messages: list[dict[str, Any]], sampling: dict[str, Any], max_tokens: int | None) -> None:
        """Start the answer to these messages. An error leaves the conversation unchanged."""
        llm = self.model.llm
        conversation = self.conversation
        is_large = sum(len(each["content"]) for each in messages) > LARGE_BYTES
        try:
            # A session may come from a file, with pictures.
            taken = await take_images_isolated(llm, messages, self.call.key.cache_salt)
            is_large = is_large or bool(taken.pictures)
            self.prompt = await render_isolated(llm.isolation, lambda: llm.render_taken(taken), large=is_large)
        except ModelFileError as reason:
            raise RequestError(str(reason)) from None

        def prepare() -> TextGeneration:
            self.prompt_ids = conversation.prompt_ids(self.prompt)
            limit = self.call.answer_limit(llm.max_context, 0, max_tokens)
            params = SamplingParams(**sampling, max_tokens=limit, roll=True, salt=self.call.key.cache_salt)
            return llm.prepare_generation(self.prompt_ids, params, conversation.sequence, continues=False)

        answer = await run_in_thread_if(is_large or len(self.prompt) > LARGE_BYTES, prepare)
        (self.stream,) = await self.call.start(self.model, [answer])
        self.messages = messages
        if self.session is not None:
            self.session.stream = self.stream

    def keep_answer(self) -> None:
        """Append the answer to the conversation, or the part of it that was generated when the client left."""
        if self.stream is None or self.is_kept:
            return
        self.is_kept = True
        self.stream.take()
        answer = self.stream.answer
        if answer.token_ids and answer.finish_reason != "error":
            self.conversation.append_answer(answer, self.messages, self.prompt, self.prompt_ids)
        else:
            self.conversation.messages = self.messages

    async def finish(self) -> None:
        """Cancel a running answer, keep its text, and release the session.

        Must be called before the client sees the end of the answer: it may send the next request at once.
        """
        if self.finishing is None:
            self.finishing = asyncio.ensure_future(self._finish())
        await asyncio.shield(self.finishing)  # the session is released even if the caller is cancelled

    async def _finish(self) -> None:
        sessions = self.call.server.sessions
        if self.stream is not None:
            self.stream.close()
            try:
                await self.model.async_llm.run_between_steps(lambda: None)  # until then the engine may use the sequence
                self.keep_answer()
            except Exception as reason:  # the engine has stopped, and the sequence is lost
                log.error("cannot keep a session's answer, so the session is dropped: %s", reason)
                if self.session is not None:
                    sessions.forget(self.session)
        if self.session is not None:
            sessions.release(self.session)
        if self.session is None or not sessions.contains(self.session):
            await close_conversation(self.model, self.conversation)

    async def text(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as raw text."""
        assert self.stream is not None
        async for piece in self.stream.pieces():
            if piece.completion is not None and piece.finish_reason != "cancelled":
                check_finished(piece.completion, has_grammar=False)
            if piece.finish_reason is not None:
                await self.finish()
            if piece.text:
                yield piece.text.encode("utf-8", "replace")

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events: {"text"}, and finally `done` with the position in the dialog."""
        assert self.stream is not None
        async for piece in self.stream.pieces():
            if piece.text:
                yield encode_event(encode_json({"text": piece.text}))
            if piece.completion is not None:
                if piece.finish_reason != "cancelled":
                    check_finished(piece.completion, has_grammar=False)
                await self.finish()
                fields = {
                    "finish_reason": piece.finish_reason,
                    "dialog_pos": len(self.conversation.messages),
                    "usage": usage_of([[piece.completion]]),
                }
                yield encode_event(encode_json(fields), b"done")
