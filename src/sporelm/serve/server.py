"""What the routes of one server share."""

import asyncio
from time import time

from sporelm.errors import SporeError
from sporelm.serve.access import Access
from sporelm.serve.answering import AnswerStream
from sporelm.serve.config import ServeConfig
from sporelm.serve.conversation_jobs import AnswerJobs
from sporelm.serve.conversations import ConversationStore, default_folder, folder_of
from sporelm.serve.endpoint import Endpoint
from sporelm.serve.leftovers import clear_leftovers
from sporelm.serve.metrics import Figures
from sporelm.serve.models import Models, Opener
from sporelm.serve.sessions import Sessions


class Server:
    """A server's parts. It is open from `open` to `close`; from `drain` on it takes nothing new."""

    def __init__(self, config: ServeConfig, open_model: Opener | None = None) -> None:
        """`open_model` is for tests. Raises RequestError for keys that are the same."""
        self.config = config
        self.access = Access(config)
        self.models = Models(config, open_model)
        self.figures = Figures(self.models)
        folder = config.session_dir / "sessions" if config.session_dir is not None else None
        self.sessions = Sessions(config.max_sessions, folder)
        self.models.farewells.append(self.sessions.farewell)
        self.endpoints: list[Endpoint] = []  # which it describes to those who ask
        self.answers: set[AnswerStream] = set()  # that requests wait for
        self.answer_jobs = AnswerJobs(ConversationStore(folder_of(config.session_dir)))  # those of the web chat
        self.draining = False
        self.began = int(time())

    async def open(self) -> None:
        """Load the first model, so that what is wrong with it is said at once. Raises SporeError, also if it takes more
        than `model_memory`."""
        place = self.config.session_dir
        folders = [place / "sessions", place / "conversations"] if place is not None else [default_folder()]
        await asyncio.to_thread(clear_leftovers, folders)
        try:
            self.models.check_limit()
            self.models.is_strict = True
            async with self.models.use():
                pass
            self.models.is_strict = False
        except SporeError as reason:
            await self.models.close()
            raise type(reason)(f"the model {self.models.default} cannot be loaded: {reason}") from reason

    def obstacles(self) -> list[str]:
        """Why a request would not be answered; none if it would, its model perhaps being loaded first."""
        ending = ["the server is ending: it takes no new requests"] if self.draining else []
        return [*ending, *self.models.troubles()]

    def drain(self) -> None:
        """Say that the server will end: what runs is finished."""
        self.draining = True

    def break_off(self) -> None:
        """End all answers that are being made; those who wait for them are told why."""
        self.answer_jobs.break_off()
        for stream in list(self.answers):
            stream.close()

    async def close(self) -> None:
        """Free all models."""
        self.draining = True
        self.answer_jobs.break_off()
        await self.answer_jobs.finished()
        await self.models.close()
