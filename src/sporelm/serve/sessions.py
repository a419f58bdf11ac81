"""Sessions of /infer: conversations that the server keeps, each the property of the key that made it.

A session is known by its key's owner, its model and its id. So many stay awake; those unused longest sleep in files, or
go where there is no folder for that. Awake sessions are also saved when they are idle, so that a killed server loses
only the latest answers. A file's name is a hash: no name comes from a request. It is written completely or not at all,
and stays until the session is saved again or is dropped.
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
from sporelm.serve.answering import AnswerStream
from sporelm.serve.failures import Refusal
from sporelm.serve.keys import ApiKey
from sporelm.serve.served_model import ServedModel
from sporelm.serve.unbroken import begin, unbroken

MOST_ASLEEP = 64  # times as many files as sessions that may be awake
IDLE_SECONDS = 2.0  # after its last answer, until a session is saved
MAX_UNSAVED_SECONDS = 30.0  # after the oldest unsaved answer; then the session is saved between two requests
SAVE_INTERVAL_RATIO = 10  # least time between two saves, in durations of the last one, within MAX_UNSAVED_SECONDS
log = logging.getLogger("sporelm.serve")


class SessionName(NamedTuple):
    """What a session is known by."""

    owner: str
    model: str
    id: str

    @property
    def file(self) -> str:
        """The name of its file; those of one owner begin alike."""
        parts = [part.encode() for part in self]
        whole = sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
        return f"{sha256(parts[0]).hexdigest()[:16]}-{whole}.session"


@dataclass(eq=False)
class Session:
    """A session that is awake; `taken` while a request has it, `new` until the first one has been answered.

    written          the `state` in its file; None if there is no file
    unwritten_since  the time of the oldest unsaved answer; None if all are saved
    write_seconds    the duration of the last save
    """

    name: SessionName
    model: ServedModel
    conversation: Conversation
    taken: bool = False
    new: bool = False
    stream: AnswerStream | None = None  # the answer that is being made
    written: int | None = None
    unwritten_since: float | None = None
    write_seconds: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> int:
        """A hash of the messages."""
        return hash(tuple((each["role"], each["content"]) for each in self.conversation.messages))


def not_found() -> Refusal:
    return Refusal(404, "Session not found", code="session_not_found")


def busy() -> Refusal:
    return Refusal(406, "Session is busy", code="session_busy")


class Sessions:
    """All sessions of a server.

    Whoever takes, forks or drops one may leave meanwhile: what was begun is done to its end all the same, and given
    back. Of one name one thing at a time is done: who asks for a session that is falling asleep waits, and wakes it.
    """

    def __init__(self, most: int, folder: Path | None) -> None:
        """`most` are awake; the others sleep in `folder`, or go if that is None."""
        self.most, self.folder = most, folder
        self.awake: OrderedDict[SessionName, Session] = OrderedDict()  # the one used longest ago first
        self._limiting = asyncio.Lock()
        self._locks: WeakValueDictionary[SessionName, asyncio.Lock] = WeakValueDictionary()

    async def take(self, key: ApiKey, model: ServedModel, number: str, *, create: bool) -> Session:
        """A session for one request; `give_back` it. With `create` one that is not there is made.

        Raises Refusal: 404 for one that is not there, or is another key's; 406 for one that is taken.
        """
        return await unbroken(self._take(key, model, number, create), self.give_back)

    async def _take(self, key: ApiKey, model: ServedModel, number: str, create: bool) -> Session:
        name = SessionName(key.owner, model.name, number)
        session = self.find(key, model, number)
        if session is not None and session.taken and session.stream is not None:
            raise busy()
        async with self._lock(name):
            session = self.find(key, model, number) or await self._wake(name, key, model)
            if session is None and create:
                session = Session(name, model, await made_conversation(model, key), new=True)
            if session is None:
                raise not_found()
            self.awake[name] = session
            if session.taken:
                raise busy()
            session.taken = True
            self.awake.move_to_end(name)
        try:
            await self._limit()
        except BaseException:
            self.give_back(session)
            raise
        return session

    def give_back(self, session: Session) -> None:
        """A request is done with a session. If it was dropped meanwhile, what it holds is freed soon."""
        session.taken, session.stream = False, None
        if not self.is_kept(session):
            begin(close_conversation(session.model, session.conversation))
        else:
            self._write_when_idle(session)

    def _write_when_idle(self, session: Session) -> None:
        """Schedule a save for when the session has been idle for a while, or unsaved for too long."""
        if session.timer is not None:
            session.timer.cancel()
        if self.folder is None or not session.conversation.messages or session.state == session.written:
            return
        now = monotonic()
        if session.unwritten_since is None:
            session.unwritten_since = now
        idle = max(IDLE_SECONDS, SAVE_INTERVAL_RATIO * session.write_seconds)
        delay = max(0.0, min(idle, session.unwritten_since + MAX_UNSAVED_SECONDS - now))
        session.timer = asyncio.get_running_loop().call_later(delay, lambda: begin(self._write_idle(session)))

    async def _write_idle(self, session: Session) -> None:
        """Save a session unless a request uses it, which schedules a save when it ends. The session stays awake."""
        async with self._lock(session.name):  # nobody takes it meanwhile
            if not session.taken and self.is_kept(session):
                try:
                    await self._write(session)
                except (SporeError, OSError) as reason:
                    log.warning("a session could not be written and is in memory only: %s", reason)

    async def _write(self, session: Session) -> None:
        """Write a session to its file, unless that holds it already. Raises SporeError, OSError."""
        if self.folder is None or not session.conversation.messages:
            return
        folder, state, began = self.folder, session.state, monotonic()
        if state == session.written and (folder / session.name.file).is_file():
            return
        await asyncio.to_thread(_write, session.conversation, folder, session.name.file, self.most * MOST_ASLEEP)
        session.written, session.unwritten_since = state, None
        session.write_seconds = monotonic() - began

    def find(self, key: ApiKey, model: ServedModel, number: str) -> Session | None:
        """A session that is awake, without taking it."""
        found = self.awake.get(SessionName(key.owner, model.name, number))
        return found if found is not None and found.model is model else None

    def exists(self, name: SessionName) -> bool:
        """Whether there is such a session, awake or asleep."""
        return name in self.awake or (self.folder is not None and (self.folder / name.file).is_file())

    async def fork(self, session: Session, number: str) -> None:
        """A second session that begins as this one, which the caller has taken, and which is given back then.

        Raises Refusal, 409, if it is there.
        """
        await unbroken(self._fork(session, number))

    async def _fork(self, session: Session, number: str) -> None:
        name = session.name._replace(id=number)
        try:
            async with self._lock(name):
                if self.exists(name):
                    raise Refusal(409, "Session ID already exists", code="session_exists")
                conversation = await session.model.llm.between_steps(session.conversation.fork)
                self.awake[name] = Session(name, session.model, conversation)
                self._write_when_idle(self.awake[name])
        finally:
            self.give_back(session)
        await self._limit()

    async def drop(self, key: ApiKey, model: ServedModel, number: str) -> bool:
        """Forget a session, its file too; what it answers is cancelled. False if there is none."""
        return await unbroken(self._drop(key, model, number))

    async def _drop(self, key: ApiKey, model: ServedModel, number: str) -> bool:
        name = SessionName(key.owner, model.name, number)
        async with self._lock(name):
            if not self.exists(name):
                return False
            session = self.awake.pop(name, None)
            if self.folder is not None:
                with suppress(OSError):
                    (self.folder / name.file).unlink(missing_ok=True)
        if session is not None and session.stream is not None:
            session.stream.close()  # whoever had it closes its conversation
        elif session is not None and not session.taken:
            await close_conversation(session.model, session.conversation)
        return True

    def forget(self, session: Session) -> None:
        """A session that was never answered, or whose engine is gone, is none; whoever has taken it closes its
        conversation."""
        if self.is_kept(session):
            del self.awake[session.name]

    def is_kept(self, session: Session) -> bool:
        """Whether a session was not dropped meanwhile."""
        return self.awake.get(session.name) is session

    async def farewell(self, model: ServedModel) -> None:
        """A model goes: its sessions sleep, or go with it."""
        for session in [each for each in self.awake.values() if each.model is model]:
            await self._sleep(session)
            if self.is_kept(session):
                del self.awake[session.name]

    async def _limit(self) -> None:
        """Put some to sleep until as many are awake as may be: of whoever has most of them the one unused longest, so
        that nobody's go because of another's crowd."""
        async with self._limiting:  # of two at once the second would put one more to sleep than it must
            while len(self.awake) > self.most:
                idle = [each for each in self.awake.values() if not each.taken]
                if not idle:
                    return  # all are in use: requests are limited elsewhere
                counts = Counter(name.owner for name in self.awake)
                await self._sleep(max(idle, key=lambda each: counts[each.name.owner]))

    async def _sleep(self, session: Session) -> None:
        """Write a session to its file, and close it, unless somebody has taken it meanwhile. Without a folder it is
        forgotten."""
        async with self._lock(session.name):
            if session.taken or not self.is_kept(session):
                return
            session.taken = True
            conversation = session.conversation
            try:
                await self._write(session)
            except (SporeError, OSError) as reason:
                log.warning("a session could not be put to sleep and is forgotten: %s", reason)
            finally:
                if self.is_kept(session):
                    del self.awake[session.name]
        await close_conversation(session.model, conversation)

    def _lock(self, name: SessionName) -> asyncio.Lock:
        """Held while a session of this name comes or goes."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _wake(self, name: SessionName, key: ApiKey, model: ServedModel) -> Session | None:
        if self.folder is None:
            return None
        path = self.folder / name.file
        if not path.is_file():
            return None
        try:
            conversation = await asyncio.to_thread(Conversation.woken, model.llm.llm, path, salt=key.salt)
        except ModelNotFound:
            return None
        except (ModelFileError, RequestError) as reason:  # damaged, or of a model that had this name before
            log.warning("a session cannot be woken: %s", reason)
            return None
        session = Session(name, model, conversation)
        session.written = session.state
        return session


def _write(conversation: Conversation, folder: Path, name: str, most: int) -> None:
    """Write a conversation into a folder of ours. Of more than `most` files the oldest go of whoever has most."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    conversation.save(folder / name)
    files = list(folder.glob("*.session"))
    if len(files) > most:
        files.sort(key=_changed_at)
        counts = Counter(map(_owner_of, files))
        for _ in range(len(files) - most):
            oldest = max(files, key=lambda path: counts[_owner_of(path)])
            oldest.unlink(missing_ok=True)
            files.remove(oldest)
            counts[_owner_of(oldest)] -= 1


def _owner_of(path: Path) -> str:
    """By what all files of one owner begin."""
    return path.name.partition("-")[0]


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


async def new_conversation(model: ServedModel, key: ApiKey) -> Conversation:
    """An empty conversation, whose pages only this key's requests find; closed if whoever waits for it leaves."""

    def closed(conversation: Conversation) -> None:
        begin(close_conversation(model, conversation))

    return await unbroken(made_conversation(model, key), closed)


async def made_conversation(model: ServedModel, key: ApiKey) -> Conversation:
    """`new_conversation`, for those who do not leave."""
    return await model.llm.between_steps(lambda: Conversation(model.llm.llm, salt=key.salt))


async def close_conversation(model: ServedModel, conversation: Conversation) -> None:
    """Free what a conversation holds, if its engine is still there."""
    with suppress(SporeError):
        await model.llm.between_steps(conversation.close)
