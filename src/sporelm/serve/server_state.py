"""Server: the state that all routes share."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import time

from sporelm.errors import SporeError
from sporelm.serve.chat.answer_stream import AnswerStream
from sporelm.serve.conversations.answer_jobs import AnswerJobs
from sporelm.serve.conversations.conversation_store import ConversationStore, conversation_folder, default_folder
from sporelm.serve.http.access_control import AccessControl
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.model_pool.model_pool import ModelOpener, ModelPool
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.server_metrics import ServerMetrics
from sporelm.serve.sessions.session_pool import SessionPool
from sporelm.serve.temp_cleanup import remove_partial_files

MAX_FETCH_THREADS = 8  # that wait for pictures of other servers; other work does not wait for them


class Server:
    """The parts of a server. It is open from `open` to `close`; after `drain` it accepts nothing new."""

    def __init__(self, config: ServeConfig, open_model: ModelOpener | None = None) -> None:
        """`open_model` replaces the loading of models, for tests. Raises RequestError for duplicate keys."""
        self.config = config
        self.access = AccessControl(config)
        self.models = ModelPool(config, open_model)
        self.metrics = ServerMetrics(self.models)
        session_folder = config.session_dir / "sessions" if config.session_dir is not None else None
        self.sessions = SessionPool(config.max_sessions, session_folder)
        self.models.on_unload.append(self.sessions.suspend_model)
        self.endpoints: list[Endpoint] = []  # for /openapi.json
        self.running_answers: set[AnswerStream] = set()  # of requests
        self.answer_jobs = AnswerJobs(ConversationStore(conversation_folder(config.session_dir)))
        self.fetch_threads = ThreadPoolExecutor(MAX_FETCH_THREADS, "fetch")
        self.is_draining = False
        self.started_at = int(time())

    async def open(self) -> None:
        """Load the first model, so that its errors are reported at once. Raises SporeError, also for a model of more
        bytes than `model_memory`."""
        session_dir = self.config.session_dir
        folders = [default_folder()]
        if session_dir is not None:
            folders = [session_dir / "sessions", session_dir / "conversations"]
        await asyncio.to_thread(remove_partial_files, folders)
        try:
            self.models.check_first_model_size()
            self.models.is_strict = True
            async with self.models.use():
                pass
            self.models.is_strict = False
        except SporeError as reason:
            await self.models.close()
            raise type(reason)(f"the model {self.models.default} cannot be loaded: {reason}") from reason

    def readiness_problems(self) -> list[str]:
        """Return why a request would not be answered; an empty list if it would, perhaps after loading its model."""
        draining = ["the server is shutting down: it accepts no new requests"] if self.is_draining else []
        return [*draining, *self.models.problems()]

    def drain(self) -> None:
        """Announce the end of the server: what runs is finished."""
        self.is_draining = True

    def cancel_answers(self) -> None:
        """End all running answers; their clients get an error."""
        self.answer_jobs.interrupt()
        for stream in list(self.running_answers):
            stream.close()

    async def close(self) -> None:
        """Unload all models."""
        self.is_draining = True
        self.answer_jobs.interrupt()
        await self.answer_jobs.wait_until_finished()
        self.fetch_threads.shutdown(wait=False, cancel_futures=True)
        await self.models.close()
