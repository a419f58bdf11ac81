"""Addresses of models on the Hugging Face hub, and the selection of a repository's files by an address.

`hf:owner/name` is a repository, `@revision` a branch, tag or commit of it. Behind a colon comes a file, a pattern
(`*Q4_K_M*`), or the tag of a number format as people know it from the names of GGUF files (`Q4_K_M`).
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from sporelm.errors import ModelNotFound

HUB_MARK = "hf:"
MAX_CHARACTERS = 500
REVISION = r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*"
PART = r"[\w.*?\[\]!+=,()-]+"  # of a file's path or a pattern
ADDRESS = re.compile(
    rf"hf:(?P<owner>[\w-][\w.-]{{0,95}})/(?P<name>[\w-][\w.-]{{0,95}})(?:@(?P<revision>{REVISION}))?"
    rf"(?::(?P<file>{PART}(?:/{PART})*))?",
    re.ASCII,
)
SPLIT = re.compile(r"(?P<stem>.+)-(?!00000)\d{5}-of-(?P<count>(?!00000)\d{5})\.gguf", re.ASCII | re.DOTALL)
MAGIC_SIGNS = re.compile(r"[*?\[]")
# GGUF files that are not language models by themselves: vision towers and importance matrices.
COMPANION = re.compile(r"(^|[-._])mmproj|^imatrix|[-._]imatrix\.gguf$|imatrix[-._]unsloth", re.IGNORECASE)
FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "*.safetensors.index.json",
    "tokenizer*",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "*.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "additional_chat_templates/*.jinja",
    # Of sentence-transformers: what rows go through once the model has made them, and prompts.
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
)


@dataclass(frozen=True)
class Address:
    """A repository of the hub, optionally with a revision, and with a file, a pattern or a tag."""

    owner: str
    name: str
    file: str | None
    revision: str | None = None

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def folder_name(self) -> str:
        """The name of its folder in the owner's folder; each revision has its own."""
        return self.name if self.revision is None else f"{self.name}@{self.revision.replace('/', '%2F')}"

    @property
    def whole(self) -> str:
        """The address of the repository, without a file."""
        return f"{HUB_MARK}{self.repository}" + ("" if self.revision is None else f"@{self.revision}")

    @property
    def text(self) -> str:
        return self.whole + ("" if self.file is None else f":{self.file}")


def parse(text: str, revision: str | None = None) -> Address:
    """Parse `hf:owner/name[@revision][:file]`. Raises ModelNotFound for anything else, '..' included.

    `revision` adds a revision to an address without one. A different one is an error.
    """
    match = ADDRESS.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if match is None or ".." in text:
        raise ModelNotFound(f"{text[:200]!r} is not an address of the form hf:owner/name[:file]")
    found = match["revision"]
    if revision is not None:
        if not re.fullmatch(REVISION, revision, re.ASCII) or ".." in revision or len(revision) > 200:
            raise ModelNotFound(f"{revision[:100]!r} cannot be a revision: give a branch, a tag or a commit")
        if found not in (None, revision):
            raise ModelNotFound(f"{text[:200]!r} names a revision, and --revision says {revision!r}: give one of them")
        found = revision
    return Address(match["owner"], match["name"], match["file"], found)


def address_of_folder(owner: str, folder_name: str) -> Address:
    """Return the address of the repository that is stored in a folder. Raises ModelNotFound for other folders."""
    name, mark, revision = folder_name.partition("@")
    return parse(f"{HUB_MARK}{owner}/{name}", revision.replace("%2F", "/") if mark else None)


def list_splits(file: str) -> list[str]:
    """Return all splits of the model of a GGUF file, in order; the file itself if it is not a split."""
    match = SPLIT.fullmatch(file)
    if match is None:
        return [file]
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]


def list_gguf_models(files: Iterable[str]) -> list[str]:
    """Return the first file of each complete GGUF model among these files, sorted."""
    held = {file for file in files if file.lower().endswith(".gguf")}
    return sorted({file for file in held if list_splits(file)[0] == file and held.issuperset(list_splits(file))})


def list_main_models(files: Iterable[str]) -> list[str]:
    """Return the GGUF models without vision towers and importance matrices; all if there are no others."""
    models = list_gguf_models(files)
    return [model for model in models if not COMPANION.search(PurePosixPath(model).name)] or models


def select_gguf(files: Collection[str], address: Address) -> str | None:
    """Return the first file of the GGUF model that matches an address's file, pattern or tag; None without a match.

    Raises ModelNotFound if several match.
    """
    assert address.file is not None
    models, wanted = list_gguf_models(files), address.file
    exact = list_splits(wanted)[0]
    if exact in models:
        return exact
    if not COMPANION.search(wanted):
        models = [model for model in models if not COMPANION.search(PurePosixPath(model).name)]
    fitting = [model for model in models if _fits(model, wanted)]
    if len(fitting) > 1:
        fitting = [model for model in fitting if _fits(PurePosixPath(model).name, wanted)] or fitting
    if len(fitting) > 1:
        raise ModelNotFound(f"{address.text!r} matches {len(fitting)} GGUF models: give one of {_join_names(fitting)}")
    return fitting[0] if fitting else None


def _fits(file: str, wanted: str) -> bool:
    """Return whether a file matches a pattern or a tag, ignoring case."""
    path, pattern = file.lower(), wanted.lower()
    if MAGIC_SIGNS.search(pattern):
        return fnmatchcase(path, pattern) or fnmatchcase(PurePosixPath(path).name, pattern)
    # A tag is delimited by separators: `Q4_K` does not match `Q4_K_M`.
    return re.search(rf"(^|[-./]){re.escape(pattern)}([-./]|$)", path.removesuffix(".gguf")) is not None


def select_files(files: Collection[str], address: Address) -> list[str]:
    """Return the files of a repository to download: a GGUF model's splits in order, or a Hugging Face folder's files.

    Raises ModelNotFound if the address is ambiguous or nothing matches.
    """
    if address.file is not None:
        first = select_gguf(files, address)
        if first is None:
            models = list_gguf_models(files)
            there = f"there are {_join_names(models)}" if models else "the repository has no GGUF file"
            raise ModelNotFound(f"{address.text!r} matches no file of {address.repository}: {there}")
        return list_splits(first)
    file = select_only_gguf(files, address.text)
    return select_folder_files(files) if file is None else list_splits(file)


def select_only_gguf(files: Collection[str], text: str) -> str | None:
    """Return the only GGUF model, or None for a repository with safetensors. Raises ModelNotFound if it has several."""
    if any(name.endswith(".safetensors") for name in files) and "config.json" in files:
        return None
    candidates = list_main_models(files)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ModelNotFound(
            f"{text!r} has {len(candidates)} GGUF models: add one, as in {text}:{candidates[0]}, or a tag as in "
            f"{text}:Q4_K_M; there are {_join_names(candidates)}"
        )
    raise ModelNotFound(f"{text!r} has neither safetensors with config.json nor a GGUF file")


def select_folder_files(files: Collection[str]) -> list[str]:
    """Return the files that make a Hugging Face folder: configuration, tokenizer and weights, each weight once."""
    weights = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    main = [name for name in weights if name.startswith("model")]  # beside them often the same weights again
    tables = [name for name in files if any(_is_beside(name, pattern) for pattern in FOLDER_FILES)]
    return sorted({*tables, *(main or weights)})


def _is_beside(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


def _join_names(files: list[str]) -> str:
    more = f" and {len(files) - 12} more" if len(files) > 12 else ""
    return ", ".join(files[:12]) + more
