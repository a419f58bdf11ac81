"""The web chat's static files, and the routes that serve them: `/` and `/webui/...`, which hold no secret.

The page loads nothing from other sites, runs no inline script and sets no inline style; the headers enforce that.

Browsers ask for `/` each time. It names the other files below `/webui/-VERSION/`, where VERSION is a hash of all files,
so that browsers cache them permanently and load them again only when one has changed.
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
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
COMPRESSED_SUFFIXES = (".woff2",)  # gzip makes these no smaller
VERSION = re.compile(r"(?<=^/webui/)-[0-9a-f]{16}/")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "vary": "accept-encoding",
}
REVALIDATE = "no-cache"  # cached, but validated each time, and answered with 304 where nothing changed
PERMANENT = "public, max-age=31536000, immutable"


def without_version(path: str) -> str:
    """Return a request's path without the version: `/webui/-0123456789abcdef/js/app.js` is `/webui/js/app.js`."""
    return VERSION.sub("", path, count=1)


class _StaticFile:
    """One file. It is compressed when the first browser accepts that."""

    def __init__(self, data: bytes, suffix: str) -> None:
        self.data = data
        self.suffix = suffix
        self.etag = f'"{sha256(data).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes | None:
        """The bytes compressed with gzip; None where that saves nothing."""
        if self.suffix in COMPRESSED_SUFFIXES or len(self.data) < 512:
            return None
        return gzip.compress(self.data, 9, mtime=0)

    def response(self, request_headers: Mapping[str, str], cache_control: str) -> Response:
        """Return the file, or 304 if the client has it already."""
        headers = {**HEADERS, "cache-control": cache_control, "etag": self.etag}
        if self.etag in request_headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = self.data
        if "gzip" in request_headers.get("accept-encoding", "") and self.compressed is not None:
            body = self.compressed
            headers["content-encoding"] = "gzip"
        return Response(body, headers={**headers, "content-type": MEDIA_TYPES[self.suffix]})


class _StaticFiles:
    """The files by their paths below the folder, of the media types that a browser needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = ""
        self._stamp: object = None
        self._files: dict[str, _StaticFile] = {}

    def reload(self) -> None:
        """Read the files again if one has changed. Otherwise only their times are checked."""
        paths = {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in MEDIA_TYPES and not path.name.startswith(".")
        }
        stamp = [(name, path.stat().st_mtime_ns, path.stat().st_size) for name, path in paths.items()]
        if stamp == self._stamp:
            return
        files = {name: _StaticFile(path.read_bytes(), path.suffix) for name, path in paths.items()}
        etags = "\n".join(f"{name} {file.etag}" for name, file in files.items())
        self.version = f"-{sha256(etags.encode()).hexdigest()[:16]}/"
        page = files["index.html"].data.replace(b'"webui/', f'"webui/{self.version}'.encode())
        files["index.html"] = _StaticFile(page, ".html")
        self._files = files
        self._stamp = stamp

    def get(self, path: str) -> _StaticFile | None:
        """Return a file by its path below the folder."""
        return self._files.get(path)


def web_chat_routes() -> list[BaseRoute]:
    """Return the routes `/` and `/webui/...`, which need no key: users enter their key in this page."""
    files = _StaticFiles(FOLDER)

    async def index(request: Request) -> Response:
        await run_in_threadpool(files.reload)
        file = files.get("index.html")
        assert file is not None
        return file.response(request.headers, REVALIDATE)

    async def one(request: Request) -> Response:
        if not files.version:
            await run_in_threadpool(files.reload)
        path = request.url.path
        file = files.get(without_version(path).removeprefix("/webui/"))
        if file is None:
            return Response("not found\n", 404, headers=HEADERS, media_type="text/plain")
        # A page that was loaded before an update may still name the old version: it gets the current file, uncached.
        is_current = path.startswith(f"/webui/{files.version}")
        return file.response(request.headers, PERMANENT if is_current else REVALIDATE)

    return [Route("/", index, methods=["GET"]), Route("/webui/{path:path}", one, methods=["GET"])]
