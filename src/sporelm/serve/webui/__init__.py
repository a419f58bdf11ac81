"""The web chat's static files, and the routes that serve them: `/` and `/webui/...`, which hold no secret.

The page asks for nothing from outside, runs no inline script and sets no inline style; the headers hold it to that.

`/` is asked for each time. It names the other files below `/webui/-MARK/`, where MARK is a hash of what they all hold,
so that a browser keeps them for good and asks for them again only when one has changed.
"""

import gzip
import re
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER = Path(__file__).parent
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
PACKED = (".woff2",)  # kinds that gzip makes no smaller
MARKED = re.compile(r"(?<=^/webui/)-[0-9a-f]{16}/")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "vary": "accept-encoding",
}
ASKED_AGAIN = "no-cache"  # kept, but asked for each time, and answered with 304 where nothing changed
FOR_GOOD = "public, max-age=31536000, immutable"


def unmarked(path: str) -> str:
    """A request's path without the mark: `/webui/-0123456789abcdef/js/app.js` is `/webui/js/app.js`."""
    return MARKED.sub("", path, count=1)


class _File:
    """One file as it is sent; packed when the first browser takes it so."""

    def __init__(self, data: bytes, suffix: str) -> None:
        self.data, self.suffix = data, suffix
        self.etag = f'"{sha256(data).hexdigest()[:32]}"'

    @cached_property
    def packed(self) -> bytes | None:
        """The bytes packed with gzip; None where that saves nothing."""
        if self.suffix in PACKED or len(self.data) < 512:
            return None
        return gzip.compress(self.data, 9, mtime=0)

    def response(self, headers: Mapping[str, str], cache: str) -> Response:
        """The file, or 304 where the one who asks has it already."""
        told = {**HEADERS, "cache-control": cache, "etag": self.etag}
        if self.etag in headers.get("if-none-match", ""):
            return Response(status_code=304, headers=told)
        body = self.data
        if "gzip" in headers.get("accept-encoding", "") and self.packed is not None:
            body, told["content-encoding"] = self.packed, "gzip"
        return Response(body, headers={**told, "content-type": KINDS[self.suffix]})


class _Files:
    """The files by their paths below the folder: of the kinds that a browser needs, and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp: object = None
        self._files: dict[str, _File] = {}
        self.mark = ""

    def look(self) -> None:
        """Read the files again if one has changed since; otherwise that is a look at each one's time."""
        found = {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in KINDS and not path.name.startswith(".")
        }
        stamp = [(name, path.stat().st_mtime_ns, path.stat().st_size) for name, path in found.items()]
        if stamp == self._stamp:
            return
        files = {name: _File(path.read_bytes(), path.suffix) for name, path in found.items()}
        told = "\n".join(f"{name} {file.etag}" for name, file in files.items())
        self.mark = f"-{sha256(told.encode()).hexdigest()[:16]}/"
        page = files["index.html"].data.replace(b'"webui/', f'"webui/{self.mark}'.encode())
        files["index.html"] = _File(page, ".html")
        self._files, self._stamp = files, stamp

    def get(self, path: str) -> _File | None:
        """A file by its path below the folder."""
        return self._files.get(path)


def web_chat_routes() -> list[BaseRoute]:
    """`/` and `/webui/...`: to be served without a key, for it is in this page that one is entered."""
    files = _Files(FOLDER)

    async def index(request: Request) -> Response:
        await run_in_threadpool(files.look)
        file = files.get("index.html")
        assert file is not None
        return file.response(request.headers, ASKED_AGAIN)

    async def one(request: Request) -> Response:
        if not files.mark:
            await run_in_threadpool(files.look)
        path = request.url.path
        file = files.get(unmarked(path).removeprefix("/webui/"))
        if file is None:
            return Response("not found\n", 404, headers=HEADERS, media_type="text/plain")
        # A page that was loaded before an update may still name the old mark: it gets what there is, for this once.
        current = path.startswith(f"/webui/{files.mark}")
        return file.response(request.headers, FOR_GOOD if current else ASKED_AGAIN)

    return [Route("/", index, methods=["GET"]), Route("/webui/{path:path}", one, methods=["GET"])]
