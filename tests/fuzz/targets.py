"""Targets of the fuzzer: the readers of model files, and every command that takes a model file.

A target passes if it ends with exit code 0 or 1 and with messages for a user: lines that begin with `spore:`, without a
traceback. A file that a tool wrote must be valid; a tool that failed must leave no file.
"""

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import map_tensors
from sporelm.cli import main
from sporelm.errors import SporeError
from sporelm.files.gguf import open_gguf
from sporelm.files.safetensors import open_safetensors
from sporelm.text import load_tokenizer
from sporelm.text.chat_templates.chat_template import ChatTemplate

STEPS = (
    *("sort", "permute-qk", "merge-linear", "split-linear", "to-llama", "permute-qk-rev->sort"),
    *("filter-meta:general.*", "filter-tensor:*.weight", "cast:linear:q8_0,embd:f16", "merge-linear->cast:linear:f32"),
)
MIXES = ("Q4_K_M", "Q8_0", "IQ4_NL", "Q2_K", "Q5_1", "TQ2_0", "MXFP4", "IQ4_XS", "Q3_K_S")
# FILE: the damaged model; SOUND: the same, undamaged; MODEL: another valid one; TEXT: a file; OUT: a new folder.
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
    "gguf quantize": [
        *(["FILE", "-o", "OUT/x.gguf", "--allow-requantize", "--type", mix] for mix in MIXES),
        ["FILE", "-o", "OUT/x.gguf", "--type", "Q4_0", "--pure", "--tensor", "*ffn*=Q6_K"],
        ["MODEL", "-o", "OUT/x.gguf", "--allow-requantize", "--type", "Q4_1", "--imatrix", "FILE"],
    ],
    "gguf imatrix": [
        ["--merge", "FILE", "SOUND", "-o", "OUT/i.gguf"],
        ["--merge", "FILE", "-o", "OUT/i.dat", "--format", "dat"],
        ["FILE", "TEXT", "-o", "OUT/i.gguf", "--chunks", "1", "--context", "8", "--backend", "reference"],
    ],
    "gguf from-hf": [
        ["FILE", "-o", "OUT/x.gguf", "--pre", "default"],
        ["FILE", "-o", "OUT/x.gguf", "--type", "q8_0", "--pre", "qwen2"],
        ["FILE", "-o", "OUT/x.gguf", "--vocab-only"],
    ],
    "gguf to-hf": [["FILE", "-o", "OUT/hf"], ["FILE", "-o", "OUT/hf", "--vocab-only"]],
    "tokenize": [["FILE", "a b <s> \u00e9", "--json"]],
    "info": [["FILE", "--no-speed", "--backend", "reference", "--json"]],
}  # fmt: skip


LOOK = ("gguf show", "gguf show-data", "gguf verify", "gguf diff")


class Fault(AssertionError):
    """A target broke one of the rules above."""


def read_gguf(path: Path) -> None:
    """Read all metadata and tensors of a GGUF file."""
    with open_gguf(path) as model:
        for value in model.metadata.values():
            list(value) if hasattr(value, "__iter__") else value
        for name in model.names:
            with contextlib.suppress(SporeError):
                model.tensor(name).dequantize()


def read_safetensors(path: Path) -> None:
    """Read all tensors of a safetensors file or folder."""
    with open_safetensors(path) as model:
        for name in model.names:
            with contextlib.suppress(SporeError):
                model.tensor(name).dequantize()


def read_model(path: Path) -> None:
    """Read a model's configuration and match the names of its tensors."""
    from sporelm.models import build

    source = open_model(path)
    try:
        map_tensors(source, build(source.config).params())
    finally:
        source.close()


def read_tokenizer(path: Path) -> None:
    """Load a tokenizer, encode and decode a text, and render the chat template."""
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
    """Return all targets: the readers, and the commands that exist."""
    return [*READERS, *(name for name in COMMANDS if name in main.COMMANDS)]


def suitable(seed: str) -> list[str]:
    """Return the targets that can read a seed of this name."""
    if seed.startswith("imatrix"):
        found = {"gguf imatrix", "gguf quantize", "open_gguf"}
    elif seed in ("folder", "shards", "two-files"):
        found = {*LOOK, "open_safetensors", "open_model", "load_tokenizer", "tokenize", "info", "gguf from-hf"}
    elif seed == "safetensors":
        found = {*LOOK, "open_safetensors"}
    else:
        found = {*LOOK, "open_gguf", "gguf set-meta", "gguf merge"}
        if seed in ("gpt2", "bert", "t5", "llama"):
            found |= {"load_tokenizer", "tokenize", "gguf to-hf"}
        if seed not in ("gpt2", "bert", "t5"):
            found |= {"gguf split", "gguf convert", "gguf quantize"}
        if seed in ("llama", "super"):
            found |= {"open_model", "info", "gguf imatrix", "gguf to-hf"}
    return [name for name in names() if name in found]


def fitting(target: str, seed: str, random: Random) -> list[str]:
    """Choose one of a command's calls, with regard to whether the seed is an importance matrix."""
    about = [call for call in COMMANDS[target] if "--merge" in call or "--imatrix" in call]
    if not about:
        return random.choice(COMMANDS[target])
    others = [call for call in COMMANDS[target] if call not in about]
    return random.choice(about if seed.startswith("imatrix") else others)


def run(target: str, seed: str, places: Mapping[str, Path], random: Random) -> tuple[str, bool]:
    """Run one target on a damaged seed; return the command, and whether it accepted the damaged model.

    Raises Fault, or an unexpected exception of a reader.
    """
    if target in READERS:
        try:
            READERS[target](places["FILE"])
        except SporeError:
            return target, False
        return target, True
    out = places["OUT"]
    chosen = fitting(target, seed, random)
    words = [*target.split(), *(str(places.get(word, word)).replace("OUT", str(out)) for word in chosen)]
    code, text, errors = run_captured(words)
    shown = " ".join([target, *chosen])
    if code not in (0, 1) or "spore: unexpected " in errors or "Traceback" in text + errors:
        raise Fault(f"{shown}: exit code {code}: {errors[:2000]}")
    if any(not line.startswith("spore: ") for line in errors.splitlines()) or (code == 1 and not text + errors):
        raise Fault(f"{shown}: stderr is not lines of spore: {errors[:2000]}")
    if "\x1b" in text + errors:
        raise Fault(f"{shown}: an escape sequence of the file was printed")
    check_written(shown, code, sorted(path for path in out.rglob("*") if path.is_file()))
    return shown, code == 0


def run_captured(words: list[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main.main(words)
    return code, output.getvalue(), errors.getvalue()


def check_written(shown: str, code: int, files: list[Path]) -> None:
    """Check that written files can be read, and that a tool that failed left none."""
    if code and files:
        raise Fault(f"{shown}: it failed and left {', '.join(path.name for path in files)}")
    for path in first_files(files):
        try:
            if path.suffix == ".gguf":
                open_gguf(path).close()
            else:
                open_safetensors(path.parent).close()
        except SporeError as error:
            raise Fault(f"{shown}: its output cannot be read: {error}") from None


def first_files(files: list[Path]) -> list[Path]:
    """Return the files to open: of a split model the first one."""
    kinds = (".gguf", ".safetensors")
    return [path for path in files if path.suffix in kinds and ("-of-" not in path.name or "-00001-of-" in path.name)]
