"""Models of the Hugging Face hub: `hf:owner/name[@revision][:pattern]`, kept in the store under `hf/owner/name/`.

The `huggingface_hub` package knows the hub's address, the user's token, and the files of a repository with their sizes
and hashes; it is an extra (`sporelm[hub]`) and is imported only here. Files are downloaded by `downloads.Fetcher`.
"""

import contextlib
import logging
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sporelm.errors import ModelFileError, ModelNotFound, install_command
from sporelm.files.store.downloads import DownloadRefused, Fetcher, RemoteFile, format_retry_after
from sporelm.files.store.folder_lock import lock_model_folder
from sporelm.files.store.hub_address import Address, list_main_models, parse, select_files, select_gguf
from sporelm.files.store.known_models import Progress
from sporelm.files.store.store_entries import COMPLETE, SCRATCH

LISTING_TIMEOUT_S = 15.0
SPARE_BYTES = 16 << 20  # left free on the disk
SAFE_NAME = re.compile(r"(?!.*\.\.)[^\x00-\x1f\\:*?\"<>|/.][^\x00-\x1f\\:*?\"<>|/]*(?:/[^\x00-\x1f\\:*?\"<>|/]+)*")


def find(text: str, store: Path) -> Path | None:
    """Return the path of the stored model of an address, or None."""
    address = parse(text)
    folder = store / "hf" / address.owner / address.folder_name
    if address.file is None:
        return find_in_folder(folder)
    first = select_gguf(list_files(folder), address)
    return None if first is None else folder / first


def list_files(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, relative to it."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def find_in_folder(folder: Path) -> Path | None:
    """Return the folder if it is marked as a complete Hugging Face folder, else its only GGUF model, or None."""
    if (folder / COMPLETE).is_file():
        return folder
    models = list_main_models(list_files(folder))
    return folder / models[0] if len(models) == 1 else None


def pull(text: str, store: Path, progress: Progress) -> Path:
    """Download the model of an address into the store. Raises ModelNotFound if the package, the network or the file is
    missing, ModelFileError if the hub gives no hash of a file or another one than the content has."""
    address = parse(text)
    found = find(text, store)
    if found is not None:
        return found
    folder = store / "hf" / address.owner / address.folder_name
    scratch = folder.with_name(SCRATCH + folder.name)
    api = Api(address)
    commit, files = api.listing()
    names = select_files(files, address)
    is_folder = not names[0].lower().endswith(".gguf")
    wanted = [RemoteFile(name, api.url(name, commit), *files[name]) for name in names]
    if unknown := [file.name for file in wanted if not (file.sha256 or file.git_sha1)]:
        raise ModelFileError(
            f"{api.endpoint} says no hash of {unknown[0]}: it could not be checked, and is not fetched"
        )
    with lock_model_folder(scratch, address.whole):
        if (found := find(text, store)) is not None:  # another process was faster
            return found
        fetcher = Fetcher(scratch, api.headers())
        check_room(store, sum(file.nbytes - fetcher.downloaded_bytes(file) for file in wanted), address)
        try:
            fetcher.fetch_all(wanted, progress)
        except DownloadRefused as error:
            raise ModelNotFound(api.refusal(error.status, error.code, error.retry_after)) from None
        move_into_store(wanted, scratch, folder, is_folder)
    return folder if is_folder else folder / names[0]


def move_into_store(wanted: list[RemoteFile], scratch: Path, folder: Path, is_folder: bool) -> None:
    """Move the downloaded files to their places in the store. The last step makes them a model."""
    for file in reversed(wanted):  # the first split last
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        (scratch / file.key).replace(target)
        for stale in scratch.glob(f"{file.stem}-*"):  # of former contents of this file
            stale.unlink()
    if is_folder:
        (folder / COMPLETE).touch()


def check_room(store: Path, needed: int, address: Address) -> None:
    """Raise ModelNotFound if the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(store).free
    if needed + SPARE_BYTES > free:
        raise ModelNotFound(
            f"{address.text} needs {needed / 1e9:.2f} GB more, {free / 1e9:.2f} GB are free in {str(store)!r}: free"
            " some, or move the store (SPORE_MODEL_STORE)"
        )


def is_safe(name: object) -> bool:
    """Return whether the name of a repository's file is safe as a path in the store and in messages."""
    return isinstance(name, str) and len(name) < 400 and name.isprintable() and SAFE_NAME.fullmatch(name) is not None


class Api:
    """One repository, as the hub's own package describes it."""

    def __init__(self, address: Address) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants, utils
        except ImportError:
            raise ModelNotFound(
                f"{address.text!r} needs the package huggingface_hub: run {install_command('hub')}"
            ) from None
        self.hub: Any = huggingface_hub
        self.utils: Any = utils
        self.address = address
        self.endpoint: str = constants.ENDPOINT
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # what is wrong is said here, in one line

    def headers(self) -> dict[str, str]:
        """Return the headers of requests: the client, and the user's token if there is one."""
        with ignore_warnings():
            found: dict[str, str] = self.utils.build_hf_headers(library_name="sporelm")
        return found

    def url(self, name: str, commit: str) -> str:
        """Where a file is; the commit keeps files of one listing together."""
        return f"{self.endpoint}/{self.address.repository}/resolve/{quote(commit, safe='')}/{quote(name)}"

    def listing(self) -> tuple[str, dict[str, tuple[int, str | None, str | None]]]:
        """The commit, and the files: name -> size in bytes, sha256, git's sha1. Raises ModelNotFound."""
        try:
            with ignore_warnings():
                info = self.hub.HfApi(endpoint=self.endpoint).model_info(
                    self.address.repository,
                    revision=self.address.revision,
                    files_metadata=True,
                    timeout=LISTING_TIMEOUT_S,
                )
        except Exception as error:  # the package raises many kinds, and those of its HTTP library
            raise ModelNotFound(self._reason(error)) from error
        files = {}
        for file in info.siblings or []:
            name, size = file.rfilename, file.size
            # The server is not trusted: a name must stay in the folder, on every system.
            if is_safe(name) and isinstance(size, int):
                hashed = dict(file.lfs) if file.lfs else {}
                files[name] = (size, _hex(hashed.get("sha256"), 64), None if hashed else _hex(file.blob_id, 40))
        if not isinstance(info.sha, str) or not files:
            raise ModelNotFound(f"{self.endpoint} does not list the files of {self.address.repository} as a hub does")
        return info.sha, files

    def _reason(self, error: Exception) -> str:
        response = getattr(error, "response", None)
        if response is not None:
            headers = response.headers
            return self.refusal(
                int(response.status_code), str(headers.get("X-Error-Code", "")), str(headers.get("Retry-After", ""))
            )
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        if type(error).__name__ == "OfflineModeIsEnabled":
            return f"{self.address.text} is not in the store, and HF_HUB_OFFLINE is set: unset it to fetch"
        if isinstance(error, ValueError):
            return f"{self.endpoint} does not answer as a hub does ({line})"
        return (
            f"{self.address.text} is not in the store, and {self.endpoint} cannot be reached ({line}): run 'spore pull"
            f" {self.address.text}' where there is a network, or give a file as MODEL"
        )

    def refusal(self, status: int, code: str, retry_after: str) -> str:
        """Return the meaning of an HTTP status here, with a remedy."""
        what, has_token = f"{self.address.repository}", bool(self._token())
        page = f"{self.endpoint}/{what}"
        if code == "GatedRepo" or status == 403:
            whose = "your token may not read it" if has_token else "it needs a token: set HF_TOKEN"
            return f"{what} is gated (HTTP {status}): ask for access at {page}; {whose}"
        if status == 401 and has_token:
            return f"{what}: the hub does not take your token (HTTP 401): set HF_TOKEN to a valid one, or unset it"
        if status == 401:
            return f"{what} does not exist or is private (HTTP 401): check the name, or set HF_TOKEN to a token for it"
        if code == "RevisionNotFound":
            return f"{what} has no revision {self.address.revision!r}: give a branch, tag or commit that it has"
        if status == 404:
            return f"{what} is not at {self.endpoint}, or is private and not for your token (HTTP 404): check the name"
        if status == 429:
            more = "" if has_token else "; a token (HF_TOKEN) raises it"
            return f"{what}: the hub's rate limit is reached (HTTP 429): wait {format_retry_after(retry_after)}{more}"
        if status >= 500:
            return f"{what}: the hub failed (HTTP {status}): try again later"
        return f"{what} could not be fetched: HTTP {status} {code}".rstrip()

    def _token(self) -> Any:
        with ignore_warnings():
            return self.hub.get_token()


@contextlib.contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress the warnings of the huggingface_hub package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _hex(value: object, length: int) -> str | None:
    """Return a hash in hexadecimal digits; None for another value."""
    return value if isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{length}}}", value) else None
