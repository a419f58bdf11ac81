"""ConversationStore: the web chat's conversations as JSON files, in a folder for each API key, with their pictures.

A folder's name is a hash of the key's owner. A file's name is the conversation's id, which must be 32 hexadecimal
digits: no name in a request becomes a path. Files are written to a temporary file and renamed, with mode 0600 in
folders of mode 0700. Every change names the version it was made from: of two tabs, or two servers on one folder, the
second gets a conflict and overwrites nothing.
"""

import json
import logging
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from sporelm import settings
from sporelm.backends.file_lock import take
from sporelm.errors import RequestError, safe_repr
from sporelm.files.part_files import PartFiles
from sporelm.serve.conversations.answer_settings import check_settings
from sporelm.serve.conversations.conversation_schema import (
    FORMAT,
    FORMAT_VERSION,
    ID,
    ConversationLimits,
    Json,
    TooLarge,
    apply_change,
    base_versions,
    check_conversation,
    check_id,
    conversations_of_export,
    images_of_export,
)
from sporelm.serve.conversations.conversation_search import (
    find_hit,
    may_contain,
    query_words,
    searched_texts,
    shown_branch,
    signature_of,
)
from sporelm.serve.conversations.stored_images import (
    IMAGE_FOLDER,
    MEDIA_TYPE_OF,
    ImageMissing,
    StoredImage,
    delete_images,
    find_image,
    image_files,
    image_ids,
    new_image_path,
    referenced_ids,
    unused_ids,
    with_image_bytes,
)

LOCK_SECONDS = 12.0  # to wait for another process that changes the same owner's conversations
log = logging.getLogger(__name__)


class ConversationNotFound(RequestError):
    """The owner has no conversation with this id."""


class VersionConflict(RequestError):
    """The conversation was changed since the version that a change was made from; `version` is the current one."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class ConversationPage(NamedTuple):
    """A page of an owner's conversations, the latest changed first, without messages; and their total number."""

    conversations: list[Json]
    total: int


class _CachedFile(NamedTuple):
    """A file of a conversation, as it was last read; `summary`, its entry in the list, is None for an invalid one.

    stamp   its time and size
    images  the ids of its pictures
    """

    stamp: tuple[int, int]
    summary: Json | None
    images: frozenset[str]


@dataclass
class _OwnerCache:
    """The cached state of an owner's files.

    files        by the ids of the conversations
    signatures   of the files that were searched, each with the file's time and size
    image_bytes  of all pictures, with the time of their folder
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    files: dict[str, _CachedFile] = field(default_factory=dict)
    signatures: dict[str, tuple[tuple[int, int], bytes]] = field(default_factory=dict)
    image_bytes: tuple[int, int] = (0, 0)


def default_folder() -> Path:
    """Return the folder of conversations of a server without a session folder."""
    return Path(settings.user_folder("data")) / "conversations"


def conversation_folder(session_dir: Path | None) -> Path:
    """Return the folder of conversations: in the session folder if there is one, so that all state is in one place."""
    return default_folder() if session_dir is None else session_dir / "conversations"


def log_other_folder(folder: Path) -> None:
    """Log a warning if this folder has no conversations but the default one has some."""
    default = default_folder()
    if folder == default or _count_owners(folder) or not (num_owners := _count_owners(default)):
        return
    log.warning(
        "the web chat has no conversations in %s; earlier ones, of %d API keys, are in %s. To use them here, copy its "
        "folders, or set no session folder", folder, num_owners, default,
    )  # fmt: skip


def _count_owners(folder: Path) -> int:
    """Return how many owners have conversations in a folder."""
    try:
        return sum(1 for owner in folder.iterdir() if owner.is_dir() and next(_files(owner), None) is not None)
    except (OSError, RequestError):
        return 0


class ConversationStore:
    """Reads and writes conversations; thread-safe. `owner` is the name of a key, any text; it is never a path."""

    def __init__(self, folder: Path | None = None, limits: ConversationLimits | None = None) -> None:
        """Folders are created with the first conversation."""
        self.folder = folder if folder is not None else default_folder()
        self.limits = limits if limits is not None else ConversationLimits()
        self._caches: dict[str, _OwnerCache] = {}
        self._lock = threading.Lock()

    def page(self, owner: str, query: str = "", offset: int = 0, limit: int = 100) -> ConversationPage:
        """Return a page of the conversations whose title or messages contain every word of `query`, in any case."""
        folder, cache = self._of(owner)
        with cache.lock:
            summaries = list(self._summaries(folder, cache).values())
        summaries.sort(key=lambda summary: (-summary["updated"], summary["id"]))
        if words := query_words(query):
            summaries = self._search(folder, cache, summaries, words)
        return ConversationPage(summaries[offset : offset + limit], len(summaries))

    def get(self, owner: str, conversation_id: str) -> Json:
        """Return a conversation with all of its messages. Raises ConversationNotFound."""
        folder, _ = self._of(owner)
        conversation = self._read(self._path(folder, conversation_id))
        if conversation is None:
            raise ConversationNotFound(f"there is no conversation {safe_repr(conversation_id)}")
        return conversation

    def create(self, owner: str, value: object) -> Json:
        """Store a new conversation under its `id`, or a new one if it has none.

        A client that lost the reply can repeat the request with the same id, which then raises VersionConflict. Raises
        InvalidConversation, TooLarge.
        """
        conversation = check_conversation(value, self.limits)
        check_settings(conversation["settings"])
        given_id = value.get("id") if isinstance(value, dict) else None
        own_id = {} if given_id is None else {"id": check_id(given_id, "id", self.limits)}
        return self._add(owner, [conversation | own_id])[0]

    def change(self, owner: str, conversation_id: str, change: object, protected_id: str | None = None) -> Json:
        """Change the fields that `change` names, see `conversation_schema.apply_change`. Return the conversation.

        `version` is the version that the change was made from, or a list of possible versions: a
        page that is closed does not receive the version of its last save.

        Raises InvalidConversation, ConversationNotFound, TooLarge, VersionConflict; then nothing is changed.
        """
        versions = base_versions(change)
        folder, cache = self._of(owner)
        with cache.lock, _folder_lock(folder):
            before = self.get(owner, conversation_id)
            if before["version"] not in versions:
                raise VersionConflict(
                    f"the conversation was changed to version {before['version']} since {versions[0]}: read it again",
                    before["version"],
                )
            after = apply_change(before, change, self.limits, protected_id)
            if after["settings"] != before["settings"]:
                check_settings(after["settings"])
            return self._put(folder, cache, before, after | {"version": before["version"] + 1, "updated": _now()})

    def update(
        self, owner: str, conversation_id: str, edit: Callable[[Json], Json], *, is_new_version: bool = True
    ) -> Json:
        """Replace a conversation by the result of `edit`, whatever its version; return it.

        `edit` gets the stored conversation and returns another one; its errors are passed on and change nothing.
        Without `is_new_version` the version stays, so that changes made from it are still accepted.

        Raises ConversationNotFound, TooLarge, RequestError.
        """
        folder, cache = self._of(owner)
        with cache.lock, _folder_lock(folder):
            before = self.get(owner, conversation_id)
            after = edit(before)
            if is_new_version:
                after = after | {"version": before["version"] + 1, "updated": _now()}
            return self._put(folder, cache, before, after)

    def _put(self, folder: Path, cache: _OwnerCache, before: Json, after: Json) -> Json:
        """Write a changed conversation. The caller holds the lock of the cache and of the folder."""
        data = self._encode(after)
        images_before = image_ids(before)
        images_after = image_ids(after)
        _check_images_exist(folder, images_after - images_before)
        self._check_room(folder, cache, len(data) - len(self._encode(before)), 0)
        _write(self._path(folder, after["id"]), data)
        if images_before - images_after:
            self._delete_unused_images(folder, cache, images_before - images_after)
        return after

    def delete(self, owner: str, conversation_id: str) -> None:
        """Delete a conversation. Raises ConversationNotFound."""
        folder, cache = self._of(owner)
        path = self._path(folder, conversation_id)
        with cache.lock, _folder_lock(folder):  # or a change by another server would restore it
            stored = self._read(path)
            try:
                path.unlink()
            except FileNotFoundError:
                raise ConversationNotFound(f"there is no conversation {safe_repr(conversation_id)}") from None
            except OSError as reason:
                raise _disk_error("deleted", path, reason) from None
            if stored is not None:
                self._delete_unused_images(folder, cache, image_ids(stored))

    def add_image(self, owner: str, data: bytes) -> str:
        """Store a picture; return its id, to which messages refer. Raises InvalidConversation, TooLarge."""
        folder, cache = self._of(owner)
        if len(data) > self.limits.image_bytes:
            raise TooLarge(f"the image has {len(data)} bytes: at most {self.limits.image_bytes} are stored")
        path = new_image_path(folder, data)
        _make_folder(self.folder)
        _make_folder(folder)
        with cache.lock, _folder_lock(folder):
            self._summaries(folder, cache)
            if all(file.summary is not None for file in cache.files.values()):
                used = set[str]().union(*(file.images for file in cache.files.values()))
                delete_images(folder, unused_ids(folder, used))
            self._add_images(folder, cache, [data], 0)
        return path.stem

    def image(self, owner: str, identity: str) -> StoredImage:
        """Return a picture. Raises ConversationNotFound."""
        folder, _ = self._of(owner)
        path = find_image(folder, identity)
        try:
            if path is not None:
                return StoredImage(path.read_bytes(), MEDIA_TYPE_OF[path.suffix[1:]])
        except FileNotFoundError:
            pass  # deleted meanwhile
        except OSError as reason:
            raise _disk_error("read", folder / IMAGE_FOLDER, reason) from None
        raise ConversationNotFound(f"there is no image {safe_repr(identity)}")

    def with_images(self, owner: str, messages: Sequence[Json]) -> list[Json]:
        """Return messages of a prompt with the bytes of their pictures. Raises ConversationNotFound."""
        images = {identity: self.image(owner, identity).data for identity in referenced_ids(messages)}
        return with_image_bytes(messages, images)

    def _add_images(self, folder: Path, cache: _OwnerCache, images: Sequence[bytes], more_bytes: int) -> list[Path]:
        """Store the pictures that are not stored yet; return their files. `more_bytes` will be written besides. The
        caller holds the lock of the cache and of the folder."""
        paths = [new_image_path(folder, data) for data in images]
        new = {path: data for path, data in zip(paths, images, strict=True) if not path.exists()}
        self._check_room(folder, cache, sum(map(len, new.values())) + more_bytes, 0)
        if images:
            _make_folder(folder / IMAGE_FOLDER)
        try:
            for path, data in new.items():
                _write(path, data)
        except RequestError:
            _remove(new)
            raise
        for path in paths:
            if path not in new:
                with suppress(OSError):
                    os.utime(path)  # its day begins again
        return list(new)

    def _delete_unused_images(self, folder: Path, cache: _OwnerCache, ids: frozenset[str]) -> None:
        """Delete those pictures that no conversation shows any more; none if a file cannot be read."""
        if not ids:
            return
        self._summaries(folder, cache)
        if any(file.summary is None for file in cache.files.values()):
            return
        delete_images(folder, ids.difference(*(file.images for file in cache.files.values())))

    def export(self, owner: str, conversation_id: str | None = None) -> Iterator[str]:
        """Return one conversation, or all of them, as the text of a file for `import_all`, piece by piece.

        Raises ConversationNotFound, before the first piece.
        """
        if conversation_id is not None:
            return self._export(owner, iter([self.get(owner, conversation_id)]))
        folder, _ = self._of(owner)
        ids = [summary["id"] for summary in self.page(owner, limit=self.limits.conversations).conversations]
        conversations = (self._read(self._path(folder, each)) for each in ids)
        return self._export(owner, (each for each in conversations if each is not None))

    def import_all(self, owner: str, value: object) -> list[Json]:
        """Add an export's conversations under new ids, with their pictures: those in the export, or stored already.

        Raises InvalidConversation, TooLarge; then none is added.
        """
        conversations = [check_conversation(each, self.limits) for each in conversations_of_export(value)]
        return self._add(owner, conversations, images_of_export(value, self.limits))

    def _add(self, owner: str, conversations: list[Json], images: Sequence[bytes] = ()) -> list[Json]:
        folder, cache = self._of(owner)
        complete = [_with_defaults(conversation) for conversation in conversations]
        texts = [self._encode(conversation) for conversation in complete]
        _make_folder(self.folder)
        _make_folder(folder)
        with cache.lock, _folder_lock(folder):
            self._check_room(folder, cache, sum(map(len, texts)), len(texts))
            paths = [self._path(folder, conversation["id"]) for conversation in complete]
            for path in paths:
                if path.exists():
                    stored = self._read(path)
                    version = stored["version"] if stored is not None else 0
                    raise VersionConflict(f"conversation {path.stem} is stored already: change that one", version)
            new_images = self._add_images(folder, cache, images, sum(map(len, texts)))
            try:
                _check_images_exist(folder, frozenset[str]().union(*map(image_ids, complete)))
                for path, text in zip(paths, texts, strict=True):
                    _write(path, text)
            except RequestError:
                _remove([*paths, *new_images])
                raise
        return complete

    def _of(self, owner: str) -> tuple[Path, _OwnerCache]:
        """Return an owner's folder and cache."""
        name = sha256(b"sporelm conversations\0" + owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with self._lock:
            return self.folder / name, self._caches.setdefault(name, _OwnerCache())

    def _path(self, folder: Path, conversation_id: str) -> Path:
        if not ID.fullmatch(conversation_id):
            raise ConversationNotFound(f"there is no conversation {safe_repr(conversation_id)}")
        return folder / f"{conversation_id}.json"

    def _summaries(self, folder: Path, cache: _OwnerCache) -> dict[str, Json]:
        """Return the list's entry of each file; unchanged files are not read again. The caller holds the cache lock."""
        files: dict[str, _CachedFile] = {}
        for conversation_id, entry in _files(folder):
            with suppress(OSError):  # deleted by another process meanwhile
                stat = entry.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                before = cache.files.get(conversation_id)
                if before is not None and before.stamp == stamp:
                    files[conversation_id] = before
                elif (conversation := self._read(Path(entry.path))) is None:
                    files[conversation_id] = _CachedFile(stamp, None, frozenset())
                else:
                    files[conversation_id] = _CachedFile(stamp, summary_of(conversation), image_ids(conversation))
        cache.files = files
        for conversation_id in list(cache.signatures):  # another thread may be searching
            if conversation_id not in files:
                cache.signatures.pop(conversation_id, None)
        return {name: file.summary for name, file in files.items() if file.summary is not None}

    def _search(self, folder: Path, cache: _OwnerCache, summaries: list[Json], words: list[str]) -> list[Json]:
        """Return the conversations that contain every word. A file is read if it changed since it was last searched, or
        its signature says that it may contain them."""
        hits = []
        for summary in summaries:
            conversation_id = summary["id"]
            file = cache.files.get(conversation_id)
            stamp = file.stamp if file is not None else (0, 0)
            entry = cache.signatures.get(conversation_id)
            signature = entry[1] if entry is not None and entry[0] == stamp else None
            if signature is not None and not may_contain(signature, words):
                continue
            conversation = self._read(self._path(folder, conversation_id))
            if conversation is None:
                continue
            texts = searched_texts(conversation)
            if signature is None:
                cache.signatures[conversation_id] = (stamp, signature_of(texts))
            hit = find_hit(texts, words, shown_branch(conversation))
            if hit is None:
                continue
            if hit.message is None:
                hits.append(summary)
            else:
                hits.append(summary | {"snippet": hit.snippet, "hit": conversation["messages"][hit.message]["id"]})
        return hits

    def _check_room(self, folder: Path, cache: _OwnerCache, more_bytes: int, more_conversations: int) -> None:
        """Raise TooLarge if the owner's conversations would exceed the limits."""
        self._summaries(folder, cache)
        total_bytes = sum(file.stamp[1] for file in cache.files.values()) + more_bytes
        if more_bytes > 0:
            total_bytes += _image_bytes(folder, cache)
        total = len(cache.files) + more_conversations
        if more_conversations and total > self.limits.conversations:
            raise TooLarge(f"{total} conversations: at most {self.limits.conversations} are stored; delete some")
        if more_bytes > 0 and total_bytes > self.limits.owner_bytes:
            raise TooLarge(
                f"{total_bytes} bytes of conversations and images: at most {self.limits.owner_bytes} are stored; "
                "delete some"
            )

    def _encode(self, conversation: Json) -> bytes:
        data = json.dumps(conversation, ensure_ascii=False, separators=(",", ":")).encode()
        if len(data) > self.limits.conversation_bytes:
            raise TooLarge(
                f"the conversation has {len(data)} bytes: at most {self.limits.conversation_bytes} are stored; "
                "start another"
            )
        return data

    def _read(self, path: Path) -> Json | None:
        """Return a file's conversation; None if the file is missing, or invalid, which is logged."""
        try:
            with path.open("rb") as file:
                data = file.read(self.limits.conversation_bytes + 1)
            stored = json.loads(data)
            fields = check_conversation(stored, self.limits)
            return {"id": path.stem, "created": 0, "updated": 0} | fields | {"version": int(stored["version"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RequestError) as reason:
            log.warning("conversation %s is ignored: %s", path, safe_repr(str(reason), 200))
            return None

    def _export(self, owner: str, conversations: Iterator[Json]) -> Iterator[str]:
        images: dict[str, None] = {}
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "exported": _now()}
        yield json.dumps(head)[:-1] + ', "conversations": ['
        for index, conversation in enumerate(conversations):
            yield (",\n" if index else "\n") + json.dumps(conversation, ensure_ascii=False)
            images |= dict.fromkeys(sorted(image_ids(conversation)))
        yield "\n]"
        if images:
            yield ', "images": {'
            mark = "\n"
            for identity in images:
                with suppress(ConversationNotFound):  # deleted meanwhile
                    yield f'{mark}"{identity}": "{b64encode(self.image(owner, identity).data).decode()}"'
                    mark = ",\n"
            yield "\n}"
        yield "}\n"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _with_defaults(conversation: Json) -> Json:
    """Return a new conversation with an id and times, where it has none, and its first version."""
    now = _now()
    return {"id": token_hex(16), "created": now, "updated": now} | conversation | {"version": 1}


def summary_of(conversation: Json) -> Json:
    """Return a conversation's entry in the list: without messages, but with their number."""
    return {name: value for name, value in conversation.items() if name not in ("messages", "system", "settings")} | {
        "num_messages": len(conversation["messages"])
    }


def _files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the ids and entries of the conversations in a folder; other files are ignored."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name, _, suffix = entry.name.partition(".")
                if suffix == "json" and ID.fullmatch(name) and entry.is_file(follow_symlinks=False):
                    yield name, entry
    except FileNotFoundError:
        return
    except OSError as reason:
        raise _disk_error("read", folder, reason) from None


def _check_images_exist(folder: Path, ids: frozenset[str]) -> None:
    """Raise ImageMissing for a picture that is not stored."""
    for identity in sorted(ids):
        if find_image(folder, identity) is None:
            raise ImageMissing(f"image {identity} is not stored: upload it first", "messages")


def _image_bytes(folder: Path, cache: _OwnerCache) -> int:
    """Return the bytes of all pictures; they are measured again only after one was added or deleted."""
    try:
        changed_ns = (folder / IMAGE_FOLDER).stat().st_mtime_ns
    except OSError:
        return 0
    if cache.image_bytes[0] != changed_ns:
        total = 0
        for _, entry in image_files(folder):
            with suppress(OSError):
                total += entry.stat().st_size
        cache.image_bytes = (changed_ns, total)
    return cache.image_bytes[1]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _disk_error(action: str, path: Path, reason: OSError) -> RequestError:
    """Return the error for a failed access to the disk; only the log has its path."""
    log.warning("conversations cannot be %s in %s: %s", action, path, reason)
    return RequestError(f"the conversation cannot be {action}: {reason.strerror or type(reason).__name__}; see the log")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as reason:
        raise _disk_error("written", folder, reason) from None


def _write(path: Path, data: bytes) -> None:
    """Replace a file at once, or leave the old one. Raises RequestError if the disk cannot be written."""
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
        raise _disk_error("written", path, reason) from None


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against changes by other processes. Does nothing if the folder does not exist."""
    path = folder / ".lock"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    except FileNotFoundError:
        yield
        return
    except OSError as reason:
        raise _disk_error("written", path, reason) from None
    with open(descriptor, "wb") as file:  # never removed: then two processes could hold a lock of that name
        deadline = time.monotonic() + LOCK_SECONDS
        while not take(file):
            if time.monotonic() > deadline:
                raise RequestError("another server is writing to these conversations: try again")
            time.sleep(0.01)
        yield
