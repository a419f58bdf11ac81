"""The conversations of the web chat: one JSON file each, in a folder for each API key, in the user's data folder.

A folder's name is a hash of the key's identity, a file's is the conversation's id, which is 32 hexadecimal digits or
refused: no name in a request becomes a path. Files are written beside and renamed, of mode 0600 in folders of mode
0700. Every change names the version it was made from: of two tabs, or two servers on one folder, the second is told of
the first and overwrites nothing.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from sporelm import settings
from sporelm.errors import RequestError, shown
from sporelm.serve.conversation_form import (
    FORMAT,
    FORMAT_VERSION,
    ID,
    Json,
    Limits,
    TooMuch,
    bundle_of,
    changed,
    checked_conversation,
    shown_id,
    versions_of,
)
from sporelm.serve.conversation_search import find_hit, may_hold, shown_branch, signature, texts_of, words_of
from sporelm.weights.file_lock import take
from sporelm.weights.part_files import PartFiles

LOCK_PATIENCE = 12.0  # seconds to wait for another process that changes the same owner's conversations
logger = logging.getLogger(__name__)


class ConversationNotFound(RequestError):
    """The owner has no conversation of that id, whoever else may."""


class VersionConflict(RequestError):
    """The conversation was changed since the version that a change was made from; `version` is the present one."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class Page(NamedTuple):
    """Some of an owner's conversations, the latest changed first, without messages; and how many there are."""

    conversations: list[Json]
    total: int


@dataclass
class _Shelf:
    """What is remembered of an owner's files: size and time of each, and what a list shows of it; and of those that
    were searched a signature, with the size and time that they had."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    known: dict[str, tuple[int, int, Json | None]] = field(default_factory=dict)
    signed: dict[str, tuple[tuple[int, int], bytes]] = field(default_factory=dict)


def default_folder() -> Path:
    """Where conversations lie unless another folder is named."""
    return Path(settings.user_folder("data")) / "conversations"


def folder_of(session_dir: Path | None) -> Path:
    """Where a server keeps conversations: in its session folder if it has one, so that its state lies together."""
    return default_folder() if session_dir is None else session_dir / "conversations"


def tell_of_others(folder: Path) -> None:
    """Say in the log, of a folder without any conversations, that there are some in the user's data folder."""
    usual = default_folder()
    if folder == usual or _any(folder) or not (number := _any(usual)):
        return
    logger.warning(
        "the web chat begins without conversations in %s: those kept before, of %d keys, lie in %s; to have them here, "
        "copy its folders, or name no session folder", folder, number, usual,
    )  # fmt: skip


def _any(folder: Path) -> int:
    """How many keys have conversations in a folder."""
    try:
        return sum(1 for shelf in folder.iterdir() if shelf.is_dir() and next(_files(shelf), None) is not None)
    except (OSError, RequestError):
        return 0


class ConversationStore:
    """Calls may come from several threads. `owner` is the identity of a key, any text; it is never a path."""

    def __init__(self, folder: Path | None = None, limits: Limits | None = None) -> None:
        """Nothing is made on disk before the first conversation is."""
        self.folder = folder if folder is not None else default_folder()
        self.limits = limits if limits is not None else Limits()
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.Lock()

    def page(self, owner: str, query: str = "", offset: int = 0, limit: int = 100) -> Page:
        """A page of the conversations whose title or messages hold every word of `query`, in any case."""
        folder, shelf = self._of(owner)
        with shelf.lock:
            found = list(self._summaries(folder, shelf).values())
        found.sort(key=lambda summary: (-summary["updated"], summary["id"]))
        if words := words_of(query):
            found = self._search(folder, shelf, found, words)
        return Page(found[offset : offset + limit], len(found))

    def get(self, owner: str, identity: str) -> Json:
        """A conversation with all of its messages. Raises ConversationNotFound."""
        folder, _ = self._of(owner)
        conversation = self._read(self._path(folder, identity))
        if conversation is None:
            raise ConversationNotFound(f"there is no conversation {shown(identity)}")
        return conversation

    def create(self, owner: str, value: object) -> Json:
        """Keep a new conversation under the id that it brings along, or a new one.

        So one that is kept twice, since the answer to the first time was lost, is still one: the second time raises
        VersionConflict. Raises BadConversation, TooMuch.
        """
        conversation = checked_conversation(value, self.limits)
        given = value.get("id") if isinstance(value, dict) else None
        own = {} if given is None else {"id": shown_id(given, "id", self.limits)}
        return self._add(owner, [conversation | own])[0]

    def change(self, owner: str, identity: str, value: object, protected: str | None = None) -> Json:
        """Change what `value` names, see `conversation_form.changed`; `version` is that which it was made from, or a
        list of those that it may have been: a page that goes away does not hear what its last save made.

        Raises BadConversation, ConversationNotFound, TooMuch, VersionConflict; then nothing is changed.
        """
        versions = versions_of(value)
        folder, shelf = self._of(owner)
        with shelf.lock, _locked(folder):
            before = self.get(owner, identity)
            if before["version"] not in versions:
                raise VersionConflict(
                    f"the conversation was changed to version {before['version']} since {versions[0]}: read it again",
                    before["version"],
                )
            after = changed(before, value, self.limits, protected)
            return self._put(folder, shelf, before, after | {"version": before["version"] + 1, "updated": _now()})

    def revise(self, owner: str, identity: str, edit: Callable[[Json], Json], *, is_new_version: bool = True) -> Json:
        """Store what `edit` makes of a conversation, whatever its version; return it.

        `edit` gets the stored conversation and returns another one; what it raises is passed on and changes nothing.
        Without `is_new_version` the version stays, so that changes made from it are still taken.

        Raises ConversationNotFound, TooMuch, RequestError.
        """
        folder, shelf = self._of(owner)
        with shelf.lock, _locked(folder):
            before = self.get(owner, identity)
            after = edit(before)
            if is_new_version:
                after = after | {"version": before["version"] + 1, "updated": _now()}
            return self._put(folder, shelf, before, after)

    def _put(self, folder: Path, shelf: _Shelf, before: Json, after: Json) -> Json:
        """Write a changed conversation. Needs the shelf's lock and the folder's."""
        text = self._text(after)
        self._room(folder, shelf, len(text) - len(self._text(before)), 0)
        _write(self._path(folder, after["id"]), text)
        return after

    def delete(self, owner: str, identity: str) -> None:
        """Remove a conversation. Raises ConversationNotFound."""
        folder, shelf = self._of(owner)
        path = self._path(folder, identity)
        with shelf.lock, _locked(folder):  # or a change that another server is making would bring it back
            try:
                path.unlink()
            except FileNotFoundError:
                raise ConversationNotFound(f"there is no conversation {shown(identity)}") from None
            except OSError as reason:
                raise _trouble("deleted", path, reason) from None

    def export(self, owner: str, identity: str | None = None) -> Iterator[str]:
        """One conversation, or all of them, as the text of a file that `import_bundle` takes, piece by piece.

        Raises ConversationNotFound, before the first piece.
        """
        if identity is not None:
            return self._bundle(iter([self.get(owner, identity)]))
        folder, _ = self._of(owner)
        names = [summary["id"] for summary in self.page(owner, limit=self.limits.conversations).conversations]
        found = (self._read(self._path(folder, name)) for name in names)
        return self._bundle(conversation for conversation in found if conversation is not None)

    def import_bundle(self, owner: str, value: object) -> list[Json]:
        """Add an export's conversations under new ids. Raises BadConversation, TooMuch; then none is added."""
        checked = [checked_conversation(conversation, self.limits) for conversation in bundle_of(value)]
        return self._add(owner, checked)

    def _add(self, owner: str, conversations: list[Json]) -> list[Json]:
        folder, shelf = self._of(owner)
        made = [_born(conversation) for conversation in conversations]
        texts = [self._text(conversation) for conversation in made]
        _make(self.folder)
        _make(folder)
        with shelf.lock, _locked(folder):
            self._room(folder, shelf, sum(map(len, texts)), len(texts))
            paths = [self._path(folder, conversation["id"]) for conversation in made]
            for path in paths:
                if path.exists():
                    there = self._read(path)
                    version = there["version"] if there is not None else 0
                    raise VersionConflict(f"conversation {path.stem} is kept already: change that one", version)
            try:
                for path, text in zip(paths, texts, strict=True):
                    _write(path, text)
            except RequestError:
                for path in paths:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                raise
        return made

    def _of(self, owner: str) -> tuple[Path, _Shelf]:
        name = sha256(b"sporelm conversations\0" + owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with self._lock:
            return self.folder / name, self._shelves.setdefault(name, _Shelf())

    def _path(self, folder: Path, identity: str) -> Path:
        if not ID.fullmatch(identity):
            raise ConversationNotFound(f"there is no conversation {shown(identity)}")
        return folder / f"{identity}.json"

    def _summaries(self, folder: Path, shelf: _Shelf) -> dict[str, Json]:
        """What a list shows of each file; one that was not changed is not read again. Needs the shelf's lock."""
        known: dict[str, tuple[int, int, Json | None]] = {}
        for name, entry in _files(folder):
            with suppress(OSError):  # removed by another process meanwhile
                stat = entry.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                before = shelf.known.get(name)
                if before is not None and before[:2] == stamp:
                    known[name] = before
                else:
                    conversation = self._read(Path(entry.path))
                    known[name] = (*stamp, summary_of(conversation) if conversation is not None else None)
        shelf.known = known
        for name in list(shelf.signed):  # another thread may be searching
            if name not in known:
                shelf.signed.pop(name, None)
        return {name: summary for name, (_, _, summary) in known.items() if summary is not None}

    def _search(self, folder: Path, shelf: _Shelf, found: list[Json], words: list[str]) -> list[Json]:
        """Those that hold every word. A file is read if it was not searched since it was changed, or its signature says
        that it may hold them."""
        hits = []
        for summary in found:
            name = summary["id"]
            stamp, signed = shelf.known.get(name, (0, 0, None))[:2], shelf.signed.get(name)
            fresh = signed is not None and signed[0] == stamp
            if fresh and signed is not None and not may_hold(signed[1], words):
                continue
            conversation = self._read(self._path(folder, name))
            if conversation is None:
                continue
            texts = texts_of(conversation)
            if not fresh:
                shelf.signed[name] = (stamp, signature(texts))
            hit = find_hit(texts, words, shown_branch(conversation))
            if hit is None:
                continue
            if hit.message is None:
                hits.append(summary)
            else:
                hits.append(summary | {"snippet": hit.snippet, "hit": conversation["messages"][hit.message]["id"]})
        return hits

    def _room(self, folder: Path, shelf: _Shelf, more_bytes: int, more: int) -> None:
        """Raises TooMuch if so many more bytes or conversations are too many for their owner."""
        self._summaries(folder, shelf)
        total = sum(size for _, size, _ in shelf.known.values()) + more_bytes
        if more and len(shelf.known) + more > self.limits.conversations:
            raise TooMuch(
                f"{len(shelf.known) + more} conversations: at most {self.limits.conversations} are kept; delete some"
            )
        if more_bytes > 0 and total > self.limits.owner_bytes:
            raise TooMuch(f"{total} bytes of conversations: at most {self.limits.owner_bytes} are kept; delete some")

    def _text(self, conversation: Json) -> bytes:
        text = json.dumps(conversation, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > self.limits.conversation_bytes:
            raise TooMuch(
                f"the conversation has {len(text)} bytes: at most {self.limits.conversation_bytes} are kept; "
                "start another"
            )
        return text

    def _read(self, path: Path) -> Json | None:
        """A file's conversation; None if it is not there, or, with a line in the log, not what we wrote."""
        try:
            with path.open("rb") as file:
                data = file.read(self.limits.conversation_bytes + 1)
            found = json.loads(data)
            fields = checked_conversation(found, self.limits)
            return {"id": path.stem, "created": 0, "updated": 0} | fields | {"version": int(found["version"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RequestError) as reason:
            logger.warning("conversation %s is left out: %s", path, shown(str(reason), 200))
            return None

    @staticmethod
    def _bundle(conversations: Iterator[Json]) -> Iterator[str]:
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "exported": _now()}
        yield json.dumps(head)[:-1] + ', "conversations": ['
        for index, conversation in enumerate(conversations):
            yield (",\n" if index else "\n") + json.dumps(conversation, ensure_ascii=False)
        yield "\n]}\n"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _born(conversation: Json) -> Json:
    """With an id of its own, its first version, and the times it does not bring along."""
    now = _now()
    return {"id": token_hex(16), "created": now, "updated": now} | conversation | {"version": 1}


def summary_of(conversation: Json) -> Json:
    """What a list shows of a conversation: no messages, but their number."""
    return {name: value for name, value in conversation.items() if name not in ("messages", "system", "settings")} | {
        "num_messages": len(conversation["messages"])
    }


def _files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Ids and entries of the conversations in a folder; what else lies there is not ours."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name, _, kind = entry.name.partition(".")
                if kind == "json" and ID.fullmatch(name) and entry.is_file(follow_symlinks=False):
                    yield name, entry
    except FileNotFoundError:
        return
    except OSError as reason:
        raise _trouble("read", folder, reason) from None


def _trouble(what: str, path: Path, reason: OSError) -> RequestError:
    """The error for a disk that refuses; where on the server that was is for its log alone."""
    logger.warning("conversations cannot be %s in %s: %s", what, path, reason)
    return RequestError(f"the conversation cannot be {what}: {reason.strerror or type(reason).__name__}; see the log")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as reason:
        raise _trouble("written", folder, reason) from None


def _write(path: Path, data: bytes) -> None:
    """Put a file in place at once, or leave the old one. Raises RequestError where the disk refuses."""
    try:
        with PartFiles() as unfinished:
            part = unfinished.path_for(path)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    except OSError as reason:
        raise _trouble("written", path, reason) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no other process change a folder meanwhile. Does nothing where the folder is not there."""
    path = folder / ".lock"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    except FileNotFoundError:
        yield
        return
    except OSError as reason:
        raise _trouble("written", path, reason) from None
    with open(descriptor, "wb") as file:  # which stays there: were it removed, two could hold a lock of that name
        end = time.monotonic() + LOCK_PATIENCE
        while not take(file):
            if time.monotonic() > end:
                raise RequestError("another server is writing to these conversations: try again")
            time.sleep(0.01)
        yield
