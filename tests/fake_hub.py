"""A Hugging Face hub on this machine: the routes that fetching needs, and the faults that fetching meets.

Routes as the hub has them: `/api/models/{repo}[/revision/{rev}]` lists files with sizes and hashes; `/{repo}/resolve/
{commit}/{path}` serves small files itself and redirects large ones to another server, as the hub does to its CDN.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BRANCH_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
LARGE = 2000  # bytes from which a file is in LFS


@dataclass
class FakeHub:
    """The repositories that the servers offer, and the requests that they got.

    files        repository -> revision ("main" and others) -> path -> content
    token        needed for every repository in `gated`, and refused everywhere if it is another one
    cut          path -> bytes after which the connection ends, the first times: a list, used up from the front
    statuses     path -> HTTP statuses answered first
    lies         path -> content served instead of the listed one
    """

    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_good"
    cut: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    extra_names: list[str] = field(default_factory=list)
    hashes: bool = True  # whether files are listed with them
    ranges: bool = True
    retry_after: str | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # server, path, headers
    address: str = ""
    cdn_address: str = ""

    def fetched(self) -> list[str]:
        """The paths of the files that were asked for, a path again for each request."""
        return [path.split("/", 5)[5] for server, path, _ in self.requests if server == "hub" and "/resolve/" in path]

    def ranges_asked(self) -> list[str]:
        return [headers["Range"] for _, _, headers in self.requests if "Range" in headers]


class Handler(BaseHTTPRequestHandler):
    """One request to either server."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub
    role: str

    def log_message(self, *args: Any) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.role, path, dict(self.headers.items())))
        if self.role == "cdn":
            self.serve(self.content_by_hash(path.rsplit("/", 1)[1]))
        elif path.startswith("/api/models/"):
            self.list_files(path.removeprefix("/api/models/"))
        else:
            self.resolve(path)

    def refuse(self, status: int, code: str = "", message: str = "no") -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
        if self.hub.retry_after is not None:
            self.send_header("Retry-After", self.hub.retry_after)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def may_read(self, repository: str) -> bool:
        given = self.headers.get("Authorization", "")
        if given not in ("", f"Bearer {self.hub.token}"):
            self.refuse(401, "", "Invalid credentials")
        elif repository not in self.hub.files:
            self.refuse(401 if not given else 404, "RepoNotFound")
        elif repository in self.hub.gated and not given:
            self.refuse(401, "GatedRepo", "Access is restricted")
        else:
            return True
        return False

    def list_files(self, rest: str) -> None:
        repository, _, revision = rest.partition("/revision/")
        if waiting := self.hub.statuses.get("api"):
            self.refuse(waiting.pop(0))
            return
        if not self.may_read(repository):
            return
        found = self.hub.files[repository].get(revision or "main")
        if found is None:
            self.refuse(404, "RevisionNotFound")
            return
        siblings = [sibling(path, content) for path, content in found.items()]
        if not self.hub.hashes:
            siblings = [{key: each[key] for key in ("rfilename", "size")} for each in siblings]
        siblings += [{"rfilename": name, "size": 1, "blobId": "0" * 40} for name in self.hub.extra_names]
        commit = COMMIT if (revision or "main") == "main" else BRANCH_COMMIT
        body = json.dumps({"id": repository, "modelId": repository, "sha": commit, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def resolve(self, path: str) -> None:
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        commit, _, name = rest.partition("/")
        if not self.may_read(repository):
            return
        if waiting := self.hub.statuses.get(name):
            self.refuse(waiting.pop(0))
            return
        revision = next((r for r in self.hub.files[repository] if commit == commit_of(r)), None)
        content = self.hub.files[repository].get(revision or "", {}).get(name)
        if content is None:
            self.refuse(404, "EntryNotFound")
        elif len(content) < LARGE:
            self.serve((name, content))
        else:
            digest = hashlib.sha256(content).hexdigest()
            self.send_response(302)
            self.send_header("Location", f"{self.hub.cdn_address}/{repository}/{digest}")
            self.send_header("X-Linked-Etag", f'"{digest}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def content_by_hash(self, digest: str) -> tuple[str, bytes]:
        everything = (pair for repo in self.hub.files.values() for files in repo.values() for pair in files.items())
        return next((name, content) for name, content in everything if hashlib.sha256(content).hexdigest() == digest)

    def serve(self, named: tuple[str, bytes]) -> None:
        name, content = named
        content = self.hub.lies.get(name, content)
        start, total = 0, len(content)
        asked = self.headers.get("Range")
        if asked and self.hub.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= total:
                self.refuse(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        if waiting := self.hub.cut.get(name):
            self.wfile.write(content[start : start + waiting.pop(0)])
            self.close_connection = True
            self.connection.close()
        else:
            self.wfile.write(content[start:])


def commit_of(revision: str) -> str:
    return COMMIT if revision == "main" else BRANCH_COMMIT


def sibling(path: str, content: bytes) -> dict[str, Any]:
    """How the hub lists a file."""
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
    listed: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": blob}
    if len(content) >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
    return listed


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Both servers of a hub while the block runs."""
    servers = []
    for role in ("hub", "cdn"):
        handler = type("Served", (Handler,), {"hub": hub, "role": role})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
    hub.address, hub.cdn_address = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
