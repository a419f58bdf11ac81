"""Models of the Hugging Face hub: `hf:owner/name[:file]`, kept in the store under `hf/owner/name/`.

The `huggingface_hub` package does the fetching; it is an extra (`sporelm[hub]`) and is imported only here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from sporelm.errors import ModelNotFound

ADDRESS = re.compile(
    r"hf:(?P<owner>[\w-][\w.-]{0,95})/(?P<name>[\w-][\w.-]{0,95})(?::(?P<file>[\w.-]+(?:/[\w.-]+)*))?", re.ASCII
)
SPLIT = re.compile(r"(?P<stem>.+)-(?!00000)\d{5}-of-(?P<count>(?!00000)\d{5})\.gguf", re.ASCII | re.DOTALL)
FOLDER_FILES = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "*.jinja",
]


@dataclass(frozen=True)
class Address:
    """One repository of the hub, and possibly one file in it."""

    owner: str
    name: str
    file: str | None

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"


def parse(text: str) -> Address:
    """Take `hf:owner/name[:file]` apart. Raises ModelNotFound for anything else, '..' included."""
    match = ADDRESS.fullmatch(text)
    if match is None or ".." in text:
        raise ModelNotFound(f"{text[:200]!r} is not an address of the form hf:owner/name[:file]")
    return Address(match["owner"], match["name"], match["file"])


def find(text: str, store: Path) -> Path | None:
    """The stored copy of the address, or None."""
    address = parse(text)
    folder = store / "hf" / address.owner / address.name
    if address.file is not None:
        files = splits_of(address.file)
        return folder / files[0] if all((folder / file).is_file() for file in files) else None
    return stored_folder(folder)


def stored_folder(folder: Path) -> Path | None:
    """The folder when a whole model was fetched into it (a marker says so), or its only GGUF model, or None."""
    if (folder / ".complete").is_file():
        return folder
    firsts = {splits_of(str(path))[0] for path in folder.rglob("*.gguf")}
    if len(firsts) != 1:
        return None
    files = [Path(file) for file in splits_of(firsts.pop())]
    return files[0] if all(file.is_file() for file in files) else None


def splits_of(file: str) -> list[str]:
    """The files of the model that a GGUF file belongs to, in order: itself alone unless it is named as splits are."""
    match = SPLIT.fullmatch(file)
    if match is None:
        return [file]
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]


def pull(text: str, store: Path) -> Path:
    """Fetch the address into the store. Raises ModelNotFound when the package, the network or the file is missing."""
    address = parse(text)
    found = find(text, store)
    if found is not None:
        return found
    try:
        import huggingface_hub as hub
    except ImportError:
        raise ModelNotFound(f"{text!r} needs the package huggingface_hub: run pip install 'sporelm[hub]'") from None
    folder = store / "hf" / address.owner / address.name
    try:
        file = address.file or only_gguf(hub.list_repo_files(address.repository), text)
        if file is not None:
            fetched = [hub.hf_hub_download(address.repository, each, local_dir=folder) for each in splits_of(file)]
            return Path(fetched[0])
        hub.snapshot_download(address.repository, local_dir=folder, allow_patterns=FOLDER_FILES)
    except ModelNotFound:
        raise
    except Exception as error:  # the package raises many kinds: network, missing file, missing rights
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelNotFound(f"{text!r} could not be fetched: {reason[0][:200]}") from error
    (folder / ".complete").touch()
    return folder


def only_gguf(files: list[str], text: str) -> str | None:
    """The GGUF file to fetch, or None for a repository of safetensors. Raises ModelNotFound when a choice is needed."""
    if any(name.endswith(".safetensors") for name in files) and "config.json" in files:
        return None
    candidates = sorted({splits_of(name)[0] for name in files if name.endswith(".gguf")} & set(files))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ModelNotFound(f"{text!r} has {len(candidates)} GGUF models: add one, as in {text}:{candidates[0]}")
    raise ModelNotFound(f"{text!r} has neither safetensors with config.json nor a GGUF file")
