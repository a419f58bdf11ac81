"""SessionPool: the sessions of /infer, which are conversations on the server that belong to an API key.

A session is identified by its key's owner, its model and its id. A limited number is active, that is, in memory. The
least recently used are saved to files, or dropped where there is no folder. Active sessions are also saved when they
are idle, so that a killed server loses only the latest answers. A file's name is a hash: it contains no name from a
request. A file is written completely or not at all, and stays until the session is saved again or dropped.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from weakref import WeakValueDictionary

from sporelm.api.conversation import Conversation
from sporelm.errors import ModelFileError, ModelNotFound, RequestError, SporeError
from sporelm.serve.chat.answer_stream import AnswerStream
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.serve.shielded import shielded, spawn

MAX_FILES_PER_ACTIVE = 64  # saved sessions for each one that may be active
IDLE_SECONDS = 2.0  # after its last answer, until a session is saved
MAX_UNSAVED_SECONDS = 30.0  # after the oldest unsaved answer; then the session is saved between two requests
SAVE_INTERVAL_RATIO = 10  # least time between two saves, in durations of the last one, within MAX_UNSAVED_SECONDS
log = logging.getLogger("sporelm.serve")


class SessionName(NamedTuple):
    """The identity of a session."""

    owner: str
    model: str
    id: str

    @property
    def file(self) -> str:
        """The name of its file; files of one owner have the same prefix."""
        parts = [part.encode() for part in self]
        digest = sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
        return f"{sha256(parts[0]).hexdigest()[:16]}-{digest}.session"


@dataclass(eq=False)
class Session:
    """An active session.

    is_acquired    whether a request holds it
    is_new         until its first request has been accepted
    stream         the running answer
    saved_state    the `state` in its file; None if there is no file
    unsaved_since  the time of the oldest unsaved answer; None if all are saved
    save_seconds   the duration of the last save
    """

    name: SessionName
    model: ServedModel
    conversation: Conversation
    is_acquired: bool = False
    is_new: bool = False
    stream: AnswerStream | None = None
    saved_state: int | None = None
    unsaved_since: float | None = None
    save_seconds: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> int:
        """A hash of the messages."""
        return hash(tuple((each["role"], each["content"]) for each in self.conversation.messages))


def session_not_found() -> ApiError:
    return ApiError(404, "Session not found", code="session_not_found")


def session_busy() -> ApiError:
    return ApiError(406, "Session is busy", code="session_busy")


class SessionPool:
    """All sessions of a server.

    Each operation finishes even if its caller is cancelled, and its result is released. Operations on one name run one
    at a time: a request for a session that is being saved waits, and loads it again.
    """

    def __init__(self, max_active: int, folder: Path | None) -> None:
        """At most `max_active` sessions are in memory; the others are saved to `folder`, or dropped if that is None."""
        self.max_active = max_active
        self.folder = folder
        self.active: OrderedDict[SessionName, Session] = OrderedDict()  # the least recently used first
        self._limiting = asyncio.Lock()
        self._locks: WeakValueDictionary[SessionName, asyncio.Lock] = WeakValueDictionary()

    async def acquire(self, key: ApiKey, model: ServedModel, session_id: str, *, create: bool) -> Session:
        """Return a session for one request, which must `release` it. A missing session is created if `create` is set.

        Raises ApiError: 404 for a session that does not exist, or is another key's; 406 for one that is acquired.
        """
        return await shielded(self._acquire(key, model, session_id, create), self.release)

    async def _acquire(self, key: ApiKey, model: ServedModel, session_id: str, create: bool) -> Session:
        name = SessionName(key.owner, model.name, session_id)
        session = self.find(key, model, session_id)
        if session is not None and session.is_acquired and session.stream is not None:
            raise session_busy()
        async with self._lock(name):
            session = self.find(key, model, session_id) or await self._load(name, key, model)
            if session is None and create:
                session = Session(name, model, await _create_conversation(model, key), is_new=True)
            if session is None:
                raise session_not_found()
            self.active[name] = session
            if session.is_acquired:
                raise session_busy()
            session.is_acquired = True
            self.active.move_to_end(name)
        try:
            await self._enforce_limit()
        except BaseException:
            self.release(session)
            raise
        return session

    def release(self, session: Session) -> None:
        """End a request's use of a session. If it was dropped meanwhile, its conversation is closed."""
        session.is_acquired = False
        session.stream = None
        if not self.contains(session):
            spawn(close_conversation(session.model, session.conversation))
        else:
            self._schedule_save(session)

    def _schedule_save(self, session: Session) -> None:
        """Schedule a save for when the session has been idle for a while, or unsaved for too long."""
        if session.timer is not None:
            session.timer.cancel()
        if self.folder is None or not session.conversation.messages or session.state == session.saved_state:
            return
        now = monotonic()
        if session.unsaved_since is None:
            session.unsaved_since = now
        idle_seconds = max(IDLE_SECONDS, SAVE_INTERVAL_RATIO * session.save_seconds)
        delay = max(0.0, min(idle_seconds, session.unsaved_since + MAX_UNSAVED_SECONDS - now))
        session.timer = asyncio.get_running_loop().call_later(delay, lambda: spawn(self._save_idle(session)))

    async def _save_idle(self, session: Session) -> None:
        """Save a session unless a request holds it, whose release schedules the next save. It stays active."""
        async with self._lock(session.name):  # no request acquires it meanwhile
            if not session.is_acquired and self.contains(session):
                try:
                    await self._save(session)
                except (SporeError, OSError) as reason:
                    log.warning("cannot save a session, which stays in memory only: %s", reason)

    async def _save(self, session: Session) -> None:
        """Write a session to its file, unless the file is up to date. Raises SporeError, OSError."""
        if self.folder is None or not session.conversation.messages:
            return
        state = session.state
        start = monotonic()
        if state == session.saved_state and (self.folder / session.name.file).is_file():
            return
        max_files = self.max_active * MAX_FILES_PER_ACTIVE
        await asyncio.to_thread(write_session, session.conversation, self.folder, session.name.file, max_files)
        session.saved_state = state
        session.unsaved_since = None
        session.save_seconds = monotonic() - start

    def find(self, key: ApiKey, model: ServedModel, session_id: str) -> Session | None:
        """Return an active session without acquiring it."""
        session = self.active.get(SessionName(key.owner, model.name, session_id))
        return session if session is not None and session.model is model else None

    def exists(self, name: SessionName) -> bool:
        """Return whether a session is active or saved."""
        return name in self.active or (self.folder is not None and (self.folder / name.file).is_file())

    async def fork(self, session: Session, new_id: str) -> None:
        """Copy a session, which the caller has acquired, under a new id. Releases the original.

        Raises ApiError, 409, if the new id exists.
        """
        await shielded(self._fork(session, new_id))

    async def _fork(self, session: Session, new_id: str) -> None:
        name = session.name._replace(id=new_id)
        try:
            async with self._lock(name):
                if self.exists(name):
                    raise ApiError(409, "Session ID already exists", code="session_exists")
                conversation = await session.model.async_llm.run_between_steps(session.conversation.fork)
                self.active[name] = Session(name, session.model, conversation)
                self._schedule_save(self.active[name])
        finally:
            self.release(session)
        await self._enforce_limit()

    async def drop(self, key: ApiKey, model: ServedModel, session_id: str) -> bool:
        """Delete a session and its file; a running answer is cancelled. Return False if it does not exist."""
        return await shielded(self._drop(key, model, session_id))

    async def _drop(self, key: ApiKey, model: ServedModel, session_id: str) -> bool:
        name = SessionName(key.owner, model.name, session_id)
        async with self._lock(name):
            if not self.exists(name):
                return False
            session = self.active.pop(name, None)
            if self.folder is not None:
                with suppress(OSError):
                    (self.folder / name.file).unlink(missing_ok=True)
        if session is not None and session.stream is not None:
            session.stream.close()  # the request that holds it closes its conversation
        elif session is not None and not session.is_acquired:
            await close_conversation(session.model, session.conversation)
        return True

    def forget(self, session: Session) -> None:
        """Drop a session that has no answer, or whose engine has stopped; the request that holds it closes its
        conversation."""
        if self.contains(session):
            del self.active[session.name]

    def contains(self, session: Session) -> bool:
        """Return whether a session is active and was not dropped."""
        return self.active.get(session.name) is session

    async def suspend_model(self, model: ServedModel) -> None:
        """Save and close the sessions of a model that is unloaded."""
        for session in [each for each in self.active.values() if each.model is model]:
            await self._suspend(session)
            if self.contains(session):
                del self.active[session.name]

    async def _enforce_limit(self) -> None:
        """Suspend sessions until at most `max_active` are active: of the owner with the most sessions the least
        recently used, so that one owner's sessions do not displace those of others."""
        async with self._limiting:  # of two at once the second would suspend one too many
            while len(self.active) > self.max_active:
                idle = [each for each in self.active.values() if not each.is_acquired]
                if not idle:
                    return  # all are in use: the number of requests is limited elsewhere
                counts = Counter(name.owner for name in self.active)
                await self._suspend(max(idle, key=lambda each: counts[each.name.owner]))

    async def _suspend(self, session: Session) -> None:
        """Save a session to its file and close it, unless a request has acquired it. Without a folder it is dropped."""
        async with self._lock(session.name):
            if session.is_acquired or not self.contains(session):
                return
            session.is_acquired = True
            conversation = session.conversation
            try:
                await self._save(session)
            except (SporeError, OSError) as reason:
                log.warning("cannot save a session, which is dropped: %s", reason)
            finally:
                if self.contains(session):
                    del self.active[session.name]
        await close_conversation(session.model, conversation)

    def _lock(self, name: SessionName) -> asyncio.Lock:
        """Return the lock that is held while a session of this name is created, loaded, saved or dropped."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(self, name: SessionName, key: ApiKey, model: ServedModel) -> Session | None:
        if self.folder is None:
            return None
        path = self.folder / name.file
        if not path.is_file():
            return None
        try:
            conversation = await model.async_llm.wake(path, salt=key.cache_salt)
        except ModelNotFound:
            return None
        except (ModelFileError, RequestError) as reason:  # damaged, or of another model with this name
            log.warning("cannot load a session: %s", reason)
            return None
        session = Session(name, model, conversation)
        session.saved_state = session.state
        return session


def write_session(conversation: Conversation, folder: Path, file_name: str, max_files: int) -> None:
    """Write a conversation to a file of a folder. Of more than `max_files` files the oldest are deleted, first those of
    the owner with the most files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    conversation.save(folder / file_name)
    files = list(folder.glob("*.session"))
    if len(files) > max_files:
        files.sort(key=_modified_at)
        counts = Counter(map(_owner_prefix, files))
        for _ in range(len(files) - max_files):
            oldest = max(files, key=lambda path: counts[_owner_prefix(path)])
            oldest.unlink(missing_ok=True)
            files.remove(oldest)
            counts[_owner_prefix(oldest)] -= 1


def _owner_prefix(path: Path) -> str:
    """Return the prefix of all files of one owner."""
    return path.name.partition("-")[0]


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


async def new_conversation(model: ServedModel, key: ApiKey) -> Conversation:
    """Return an empty conversation, whose cached pages only this key's requests reuse. It is closed if the caller is
    cancelled."""

    def close(conversation: Conversation) -> None:
        spawn(close_conversation(model, conversation))

    return await shielded(_create_conversation(model, key), close)


async def _create_conversation(model: ServedModel, key: ApiKey) -> Conversation:
    return await model.async_llm.conversation(salt=key.cache_salt)


async def close_conversation(model: ServedModel, conversation: Conversation) -> None:
    """Free a conversation's keys and values, if its engine still runs."""
    with suppress(SporeError):
        await model.async_llm.run_between_steps(conversation.close)
