"""Resumable downloads over HTTP, with a check of each file's hash.

The huggingface_hub package (2.x) discards incomplete downloads, so it is not used for the bytes. The name of a partial
file contains the hash of the complete one: it is only resumed with the same content.
"""

import hashlib
import http.client
import queue
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import ENOSPC
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.files.store.known_models import Progress

CHUNK_BYTES = 1 << 18
TRIES = 5  # in a row without a new byte
PAUSE_S = 0.5  # before the second try; doubled each time
LONGEST_PAUSE_S = 20.0
TIMEOUT_S = 30.0
LONGEST_END_S = 2.0  # that an interrupt waits for what is being read
TOGETHER = 3  # files at once
PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses of temporary failures


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its name there, where it is, its size, and its hash (sha256, or git's sha1 of it)."""

    name: str
    url: str
    nbytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def stem(self) -> str:
        """The prefix of the names of all its partial files."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    @property
    def key(self) -> str:
        """The name of its partial file, which depends on the content's hash."""
        content = f"{self.sha256 or self.git_sha1} {self.nbytes}"
        return f"{self.stem}-{hashlib.sha256(content.encode()).hexdigest()[:20]}"


class DownloadRefused(Exception):
    """An HTTP error that a retry cannot fix: its status and the server's reason."""

    def __init__(self, status: int, code: str, retry_after: str = "") -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.code, self.retry_after = status, code, retry_after


class DownloadStopped(Exception):
    """The download of another file failed, or the user interrupted."""


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the token is sent to the same server only. A redirect from https to http is refused."""

    def redirect_request(self, request: Any, fp: Any, code: int, message: str, headers: Any, url: str) -> Any:
        before, after = urlsplit(request.full_url), urlsplit(url)
        if before.scheme == "https" and after.scheme != "https":
            raise DownloadRefused(code, f"redirected from https to {after.scheme}")
        following = super().redirect_request(request, fp, code, message, headers, url)
        token = request.unredirected_hdrs.get("Authorization")
        if following is not None and token and before.netloc == after.netloc:
            following.add_unredirected_header("Authorization", token)
        return following


class Fetcher:
    """Downloads files into a folder, a few at once."""

    def __init__(self, folder: Path, headers: Mapping[str, str]) -> None:
        """headers: sent with each request; `authorization` is not sent to other servers after a redirect."""
        self.folder, self.headers = folder, headers
        self.stopped = threading.Event()
        self.arrived: dict[str, int] = {}  # by key; written by one thread each
        context = ssl.create_default_context()
        if find_spec("certifi") is not None:  # some builds of Python have no access to the system's certificates
            context.load_verify_locations(import_module("certifi").where())
        self.opener = urllib.request.build_opener(SafeRedirects, urllib.request.HTTPSHandler(context=context))

    def downloaded_bytes(self, file: RemoteFile) -> int:
        """Return how many bytes of a file are downloaded already."""
        for path in (self.folder / file.key, self.part_path(file)):
            if path.is_file():
                return min(path.stat().st_size, file.nbytes)
        return 0

    def part_path(self, file: RemoteFile) -> Path:
        return self.folder / f"{file.key}.part"

    def fetch_all(self, files: Sequence[RemoteFile], progress: Progress) -> None:
        """Download files, each to `folder / file.key`. Partial files are kept after an error or Ctrl-C, to be resumed.

        Raises DownloadRefused, ModelNotFound if the connection is lost, ModelFileError for a wrong hash, OSError of the
        disk.
        """
        total = sum(file.nbytes for file in files)
        self.arrived = {file.key: self.downloaded_bytes(file) for file in files}
        waiting: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # The largest first: the last one to finish then has little left to do.
        for file in sorted(files, key=lambda file: -file.nbytes):
            waiting.put(file)

        def run_downloads() -> None:
            while not self.stopped.is_set():
                try:
                    file = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self.fetch(file)
                    done.put(None)
                except BaseException as error:
                    done.put(error)

        # Daemons: one that waits for a silent server must not keep the program from ending.
        threads = [threading.Thread(target=run_downloads, name="fetch", daemon=True) for _ in files[:TOGETHER]]
        for thread in threads:
            thread.start()
        left = len(files)
        try:
            while left:
                progress("fetching", sum(self.arrived.values()), total)
                try:
                    outcome = done.get(timeout=0.1)
                except queue.Empty:
                    continue
                if outcome is not None:
                    raise outcome
                left -= 1
            progress("fetching", total, total)
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join(LONGEST_END_S)

    def fetch(self, file: RemoteFile) -> None:
        """Download one file completely and check its hash."""
        target, part = self.folder / file.key, self.part_path(file)
        if target.is_file() and target.stat().st_size == file.nbytes:
            return
        digests = start_hashes(file)
        tries, held = 0, hash_partial_file(part, file, digests)
        while held < file.nbytes or not part.exists():
            try:
                now = self._append(file, part, held, digests)
                if now < 0:  # the server started again
                    digests = start_hashes(file)
                    now = self._append(file, part, 0, digests)
                failure: Exception | None = None
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                failure, digests = error, start_hashes(file)
                now = hash_partial_file(part, file, digests)
            tries = 0 if now > held else tries + 1
            if failure is not None or now < file.nbytes:
                self._pause(file, now, tries, failure)
            held = now
        check_hash(file, part, digests)
        part.replace(target)

    def _pause(self, file: RemoteFile, held: int, tries: int, error: Exception | None) -> None:
        """Wait before the next try, as long as the server asks for if it does."""
        status = error.code if isinstance(error, urllib.error.HTTPError) else 0
        asked = str(error.headers.get("Retry-After", "")) if isinstance(error, urllib.error.HTTPError) else ""
        wait = float(asked) if asked.isdecimal() else PAUSE_S * 2**tries
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            code = str(error.headers.get("X-Error-Code", ""))
            if status not in PASSING or tries >= TRIES or wait > LONGEST_PAUSE_S:
                raise DownloadRefused(status, code, asked) from None
        if tries >= TRIES:
            reason = getattr(error, "reason", None) or error or "it closed the connection"
            raise ModelNotFound(
                f"{file.name}: the connection was lost after {held / 1e6:.1f} of {file.nbytes / 1e6:.1f} MB"
                f" ({str(reason)[:120]}): run the command again to resume"
            ) from None
        if self.stopped.wait(wait):
            raise DownloadStopped

    def _append(self, file: RemoteFile, part: Path, held: int, digests: "Sequence[Any]") -> int:
        """Resume at byte `held` of a file. Return the size of the partial file, or -1 if it must start again."""
        request = urllib.request.Request(file.url)
        for name, value in self.headers.items():
            request.add_unredirected_header(name.capitalize(), value)
        request.add_header("Accept-Encoding", "identity")
        if held:
            request.add_header("Range", f"bytes={held}-")
        try:
            response = self.opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code == 416 and held:  # the server has fewer bytes than we
                error.close()
                part.unlink(missing_ok=True)
                return -1
            raise
        with response:
            if held and not resumes_at(response, held):
                part.unlink(missing_ok=True)
                return -1
            with part.open("ab" if held else "wb", buffering=0) as output:
                while chunk := response.read(CHUNK_BYTES):
                    if self.stopped.is_set():
                        raise DownloadStopped
                    held += len(chunk)
                    if held > file.nbytes:
                        part.unlink(missing_ok=True)
                        raise ModelFileError(f"{file.name} has more than the {file.nbytes} bytes that the hub says")
                    write_chunk(output, part, chunk)
                    for digest in digests:
                        digest.update(chunk)
                    self.arrived[file.key] = held
        return held


def resumes_at(response: Any, held: int) -> bool:
    """Return whether the response continues at byte `held`."""
    return response.status == 206 and str(response.headers.get("Content-Range", "")).startswith(f"bytes {held}-")


def write_chunk(output: Any, part: Path, chunk: bytes) -> None:
    """Write a chunk. If the disk is full, delete the partial file, so that other programs have space."""
    try:
        view = memoryview(chunk)
        while len(view):
            view = view[output.write(view) :]
    except OSError as error:
        if error.errno == ENOSPC:
            output.close()
            part.unlink(missing_ok=True)
        raise


def start_hashes(file: RemoteFile) -> list[Any]:
    """Return the hash to compute of a file: sha256, or git's sha1 of a header and the content. Empty if unknown."""
    if file.sha256:
        return [hashlib.sha256()]
    if file.git_sha1:
        return [hashlib.sha1(f"blob {file.nbytes}\0".encode(), usedforsecurity=False)]
    return []


def hash_partial_file(part: Path, file: RemoteFile, digests: Sequence[Any]) -> int:
    """Hash the partial file and return its size in bytes. Delete it if it is too long."""
    if not part.is_file():
        return 0
    if part.stat().st_size > file.nbytes:
        part.unlink()
        return 0
    held = 0
    with part.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            held += len(chunk)
            for digest in digests:
                digest.update(chunk)
    return held


def check_hash(file: RemoteFile, part: Path, digests: Sequence[Any]) -> None:
    """Raise ModelFileError and delete the partial file if its hash differs from the hub's."""
    expected = file.sha256 or file.git_sha1
    for digest in digests:
        if digest.hexdigest() != expected:
            part.unlink(missing_ok=True)
            kind = "sha256" if file.sha256 else "git sha1"
            raise ModelFileError(
                f"{file.name} has {kind} {digest.hexdigest()}, the hub says {expected}: not used; pull again"
            )


def format_retry_after(retry_after: str) -> str:
    """Return the time that a server asks to wait, for a message."""
    return f"{retry_after} s" if retry_after.isdecimal() else "some minutes"
