"""Small valid models of every kind that readers and tools accept: the seeds of the fuzzer."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import gguf_models
import gguf_samples
import tiny_files
from sporelm.files.gguf import GgufWriter
from sporelm.quant import BF16, F16, Q4_0, Q4_K, Q6_K, Q8_0
from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from tiny_models import SUPER, WIDE, Tiny

SENTENCEPIECE = Path(__file__).resolve().parents[1] / "data" / "sentencepiece"
SPOKEN = Tiny("llama-of-llama-words", WIDE.config | {"vocab_size": 480}, 24)  # as many as the SentencePiece model has
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(8)), "▁a", "▁b", "a", "b", "ab", "▁ab", "▁"]


@dataclass(frozen=True)
class Seed:
    """A model as files: path -> content; `main` is the path that tools get, "" for the folder."""

    name: str
    files: Mapping[str, bytes]
    main: str

    def write(self, folder: Path, changed: Mapping[str, bytes] | None = None) -> Path:
        """Write the files, some of them changed, and return the path for tools."""
        for name, content in {**self.files, **(changed or {})}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.main


def vocabulary(kind: str) -> dict[str, Any]:
    """Return the metadata of a small tokenizer: "llama", "bert", "t5" or "gpt2"."""
    words, prefix = WORDS, "tokenizer.ggml."
    more: dict[str, Any] = {}
    if kind == "gpt2":
        words = [*byte_alphabet(), "ab", "Ġa", "<|end|>"]
        more = {f"{prefix}merges": ["a b", "Ġ a"], f"{prefix}pre": "default", f"{prefix}eos_token_id": len(words) - 1}
    elif kind == "bert":
        words = ["[UNK]", "[CLS]", "[SEP]", "▁a", "▁b", "b", "c"]
        more = {f"{prefix}cls_token_id": 1, f"{prefix}seperator_token_id": 2, f"{prefix}unknown_token_id": 0}
    else:
        more = {f"{prefix}bos_token_id": 1, f"{prefix}eos_token_id": 2, f"{prefix}unknown_token_id": 0}
    types = [2 if "unk" in word.lower() else 3 if word[0] in "<[" and len(word) > 2 else 1 for word in words]
    return {
        "general.architecture": "llama",
        f"{prefix}model": kind,
        f"{prefix}tokens": words,
        f"{prefix}scores": np.linspace(0, -3, len(words)).astype(np.float32),
        f"{prefix}token_type": np.array(types, np.int32),
        "tokenizer.chat_template": gguf_samples.TEMPLATE,
        **more,
    }


def byte_alphabet() -> list[str]:
    """Return GPT-2's letters for the 256 bytes: printable Latin-1 as it is, the others from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [*map(chr, plain), *(chr(256 + number) for number in range(256 - len(plain)))]


def _tokenizer(kind: str) -> dict[str, Any]:
    """Return the metadata of a tokenizer without the architecture, and with sampling parameters."""
    sampling = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40, "general.license": "mit"}
    return {key: value for key, value in vocabulary(kind).items() if key != "general.architecture"} | sampling


def _vocabulary_file(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"{kind}.gguf"
        writer = GgufWriter(path)
        for key, value in vocabulary(kind).items():
            writer.add(key, value)
        writer.write()
        return path

    return write


def _minicpm() -> dict[str, Any]:
    """Return the dense model's metadata as MiniCPM's, which has multipliers."""
    found = {key.replace("llama.", "minicpm."): value for key, value in gguf_models.META.items()}
    scales = {f"minicpm.{name}_scale": 1.5 for name in ("embedding", "residual", "logit")}
    return found | {"general.architecture": "minicpm"} | scales


def _split(folder: Path) -> Path:
    return gguf_samples.splits(folder)[0]


def _folder(folder: Path) -> Path:
    """A Hugging Face folder with both kinds of tokenizer files."""
    made = tiny_files.write_folder(folder / "model", WIDE)
    _tokenizer_files(made)
    return made


def _shards(folder: Path) -> Path:
    made = folder / "model"
    made.mkdir()
    index, weights = {}, list(SPOKEN.weights().items())
    for number, part in enumerate((weights[:3], weights[3:]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({key: np.ascontiguousarray(value) for key, value in part}, made / name, {"format": "pt"})
        index |= {key: name for key, _ in part}
    (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (made / "config.json").write_text(json.dumps(SPOKEN.config))
    _tokenizer_files(made)
    (made / "tokenizer.json").unlink()
    (made / "tokenizer.model").write_bytes((SENTENCEPIECE / "llama.model").read_bytes())
    return made


def _two_files(folder: Path) -> Path:
    """A folder from before tokenizer.json: vocab.json and merges.txt."""
    made = tiny_files.write_folder(folder / "model", SPOKEN)
    words = ["<unk>", *byte_alphabet(), "ab"]
    (made / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (made / "merges.txt").write_text("#version: 0.2\na b\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>", "chat_template": gguf_samples.TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def _tokenizer_files(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(["<unk>", "a", "b", "ab", "Ġ"])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": ["a b"], "unk_token": "<unk>", "byte_fallback": False}
    added = {"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    cutting = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added | {"special": True}],
        "normalizer": {"type": "NFC"}, "post_processor": None, "decoder": cutting,
        "pre_tokenizer": cutting,
        "model": model,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "chat_template": gguf_samples.TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0]}))


def _safetensors(folder: Path) -> Path:
    path = folder / "x.safetensors"
    values = gguf_samples.values_of((4, 32))
    tensors = {"a.weight": values, "b": values.astype(np.float16), "c": (values * 9).astype(np.int16)}
    save_file(tensors, path, {"format": "pt"})
    return path


def _imatrix(form: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"imatrix.{form}"
        values = np.abs(gguf_samples.values_of((3, gguf_models.WIDTH)))
        entries = {
            "blk.0.attn_q.weight": ImatrixEntry(values[:1], np.array([7], np.int64)),
            "blk.1.ffn_up.weight": ImatrixEntry(values, np.array([7, 0, 2], np.int64)),
        }
        write_imatrix(path, Imatrix(entries, ("text",), 3, 8), form=form)
        return path

    return write


WRITERS: dict[str, Callable[[Path], Path]] = {
    "little": lambda folder: gguf_samples.sample(folder / "x.gguf"),
    "big": lambda folder: gguf_samples.sample(folder / "x.gguf", byte_order="big"),
    "dense": lambda folder: gguf_models.write_model(folder / "x.gguf", matrices=Q8_0, others={"output.weight": F16}),
    "types": lambda folder: gguf_models.write_model(folder / "x.gguf", {}, raw=GGML_TYPES),
    "experts": lambda folder: gguf_models.write_model(folder / "x.gguf", gguf_models.MIXTURE, BF16),
    "llama": lambda folder: tiny_files.write_gguf(folder / "x.gguf", WIDE, matrices=Q4_0, more=_tokenizer("llama")),
    "super": lambda folder: tiny_files.write_gguf(
        folder / "x.gguf", SUPER, matrices=Q4_K, others={"token_embd.weight": Q6_K}
    ),
    "minicpm": lambda folder: gguf_models.write_model(folder / "x.gguf", matrices=F16, meta=_minicpm()),
    "split": _split,
    "safetensors": _safetensors,
    "imatrix": _imatrix("gguf"),
    "imatrix-dat": _imatrix("dat"),
    "folder": _folder,
    "shards": _shards,
    "two-files": _two_files,
    **{kind: _vocabulary_file(kind) for kind in ("gpt2", "bert", "t5")},
}


def make(name: str) -> Seed:
    """Make a seed by its name in `WRITERS`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        main = WRITERS[name](folder)
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return Seed(name, files, main.relative_to(folder).as_posix())
