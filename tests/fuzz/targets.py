"""What the fuzzer runs on a damaged model: the readers, and every command that takes a model file.

A target passes if it ends with exit code 0 or 1 and what a user can read: lines that begin with `spore:`, no traceback,
nothing unexpected. What a tool wrote is a sound file; where it failed, it left nothing.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from sporelm.cli import main
from sporelm.errors import SporeError
from sporelm.text import load_tokenizer
from sporelm.text.template import ChatTemplate
from sporelm.weights.gguf import open_gguf
from sporelm.weights.load import match_names, open_model
from sporelm.weights.safetensors import open_safetensors

STEPS = (
    *("sort", "permute-qk", "merge-linear", "split-linear", "to-llama", "permute-qk-rev->sort"),
    *("filter-meta:general.*", "filter-tensor:*.weight", "cast:linear:q8_0,embd:f16", "merge-linear->cast:linear:f32"),
)
# FILE: the damaged model; SOUND: the same before; OUT: a new folder.
COMMANDS: dict[str, list[list[str]]] = {
    "gguf show": [["FILE"], ["FILE", "--full", "--json"], ["FILE", "-m", "*token*", "-n", "all"]],
    "gguf show-data": [["FILE", "*", "--rows", ":"], ["FILE", "*", "--json", "--head", "3"]],
    "gguf verify": [["FILE"], ["FILE", "--hashes", "--json"], ["FILE", "--strict", "--no-values"]],
    "gguf diff": [["FILE", "SOUND"], ["SOUND", "FILE", "--distance", "--json"]],
    "gguf split": [["FILE", "-o", "OUT/", "--max-tensors", "2"],
                   ["FILE", "-o", "OUT/", "--max-size", "1M", "--dry-run"]],
    "gguf merge": [["FILE", "-o", "OUT/merged.gguf"]],
    "gguf set-meta": [["FILE", "general.name=x", "a:[u32]=1,2", "-o", "OUT/x.gguf"],
                      ["FILE", "-o", "OUT/x.gguf", "--delete", "*t*", "--force"]],
    "gguf convert": [["FILE", "-o", "OUT/x.gguf", "-x", steps] for steps in STEPS],
    "gguf quantize": [["FILE", "-o", "OUT/x.gguf", mix] for mix in ("q4_k_m", "q8_0", "iq4_nl")],
    "gguf from-hf": [["FILE", "-o", "OUT/x.gguf"]],
    "gguf to-hf": [["FILE", "-o", "OUT/hf"]],
    "tokenize": [["FILE", "a b <s> \u00e9", "--json"]],
    "info": [["FILE", "--no-speed", "--backend", "reference", "--json"]],
}  # fmt: skip


class Fault(AssertionError):
    """What must not happen has happened."""


def read_gguf(path: Path) -> None:
    """Everything that a GGUF file holds."""
    with open_gguf(path) as model:
        for value in model.metadata.values():
            list(value) if hasattr(value, "__iter__") else value
        for name in model.names:
            with contextlib.suppress(SporeError):
                model.tensor(name).dequantize()


def read_safetensors(path: Path) -> None:
    """Everything that a safetensors file or folder holds."""
    with open_safetensors(path) as model:
        for name in model.names:
            with contextlib.suppress(SporeError):
                model.tensor(name).dequantize()


def read_model(path: Path) -> None:
    """What is read before a model is loaded: its configuration and the names of its tensors."""
    from sporelm.models import build

    source = open_model(path)
    try:
        match_names(source, build(source.config).params())
    finally:
        source.close()


def read_tokenizer(path: Path) -> None:
    """A tokenizer, a text through it and back, and the chat template."""
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("a b ab <s> \u00e9\n\U0001f600 a")
    tokenizer.decode(ids)
    ChatTemplate.of(tokenizer).render([{"role": "user", "content": "a"}])


READERS: dict[str, Callable[[Path], None]] = {
    "open_gguf": read_gguf,
    "open_safetensors": read_safetensors,
    "open_model": read_model,
    "load_tokenizer": read_tokenizer,
}


def names() -> list[str]:
    """All targets: the readers, and the commands that there are."""
    return [*READERS, *(name for name in COMMANDS if name in main.COMMANDS)]


def run(target: str, damaged: Path, sound: Path, out: Path, random: Random) -> str:
    """Run one target; what was run, for a report. Raises Fault, and whatever a reader should not."""
    if target in READERS:
        with contextlib.suppress(SporeError):
            READERS[target](damaged)
        return target
    places = {"FILE": str(damaged), "SOUND": str(sound)}
    chosen = random.choice(COMMANDS[target])
    words = [*target.split(), *(places.get(word) or word.replace("OUT", str(out)) for word in chosen)]
    code, text, errors = captured(words)
    shown = " ".join([target, *chosen])
    if code not in (0, 1) or "unexpected " in errors or "Traceback" in text + errors:
        raise Fault(f"{shown}: exit code {code}: {errors[:2000]}")
    if any(not line.startswith("spore: ") for line in errors.splitlines()) or (code == 1 and not text + errors):
        raise Fault(f"{shown}: stderr is not lines of spore: {errors[:2000]}")
    if "\x1b" in text + errors:
        raise Fault(f"{shown}: an escape sequence out of the file came through")
    check_written(shown, code, sorted(path for path in out.rglob("*") if path.is_file()))
    return shown


def captured(words: list[str]) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed to stdout and stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main.main(words)
    return code, output.getvalue(), errors.getvalue()


def check_written(shown: str, code: int, files: list[Path]) -> None:
    """What a tool wrote can be read; a tool that failed wrote nothing."""
    if code and files:
        raise Fault(f"{shown}: it failed and left {', '.join(path.name for path in files)}")
    for path in first_files(files):
        try:
            open_gguf(path).close()
        except SporeError as error:
            raise Fault(f"{shown}: what it wrote cannot be read: {error}") from None


def first_files(files: list[Path]) -> Iterator[Path]:
    """The GGUF files among these that are opened: of a split the first one."""
    for path in files:
        if path.suffix == ".gguf" and ("-of-" not in path.name or "-00001-of-" in path.name):
            yield path
