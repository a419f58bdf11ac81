"""Small GGUF files for the tools that write: dense and with experts, quantized, of types known by name alone."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.files.gguf import GgufFile, GgufWriter, open_gguf
from sporelm.quant import F32, QuantFormat, quantize_tensor
from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.quant.stored_tensor import StoredTensor

HEADS, KV_HEADS, HEAD, WIDTH, FFN, EXPERTS = 4, 2, 16, 64, 96, 3
META: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "größer"],
    "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
}
DENSE: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (40, WIDTH),
    **{
        f"blk.{layer}.{name}": shape
        for layer in range(2)
        for name, shape in {
            "attn_norm.weight": (WIDTH,),
            "attn_q.weight": (HEADS * HEAD, WIDTH),
            "attn_k.weight": (KV_HEADS * HEAD, WIDTH),
            "attn_v.weight": (KV_HEADS * HEAD, WIDTH),
            "attn_q.bias": (HEADS * HEAD,),
            "attn_k.bias": (KV_HEADS * HEAD,),
            "attn_v.bias": (KV_HEADS * HEAD,),
            "attn_q_norm.weight": (HEAD,),
            "attn_output.weight": (WIDTH, HEADS * HEAD),
            "ffn_norm.weight": (WIDTH,),
            "ffn_gate.weight": (FFN, WIDTH),
            "ffn_up.weight": (FFN, WIDTH),
            "ffn_down.weight": (WIDTH, FFN),
        }.items()
    },
    "output_norm.weight": (WIDTH,),
    "output.weight": (40, WIDTH),
}
MIXTURE = {
    "token_embd.weight": (8, WIDTH),
    "blk.0.ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "blk.0.ffn_gate_exps.weight": (EXPERTS, FFN, WIDTH),
    "blk.0.ffn_up_exps.weight": (EXPERTS, FFN, WIDTH),
    "blk.0.ffn_gate_exps.bias": (EXPERTS, FFN),
    "blk.0.ffn_up_exps.bias": (EXPERTS, FFN),
    "blk.0.ffn_down_exps.weight": (EXPERTS, WIDTH, FFN),
}


def write_model(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] = DENSE,
    matrices: type[QuantFormat] = F32,
    meta: Mapping[str, Any] | None = None,
    others: Mapping[str, type[QuantFormat]] | None = None,
    raw: Iterable[int] = (),
    **options: Any,
) -> Path:
    """A file with random weights; `raw` adds a tensor of random bytes of each of these type ids."""
    random, writer = np.random.default_rng(7), GgufWriter(path, **options)
    for key, value in (META if meta is None else meta).items():
        writer.add(key, value)
    for name, shape in shapes.items():
        number_format = (others or {}).get(name, matrices if len(shape) > 1 and name.endswith("weight") else F32)
        blocks = quantize_tensor(number_format, random.standard_normal(shape).astype(np.float32))
        writer.add_tensor(name, StoredTensor(name, number_format, shape, blocks))
    for type_id in raw:
        known = GGML_TYPES[type_id]
        data = random.integers(0, 256, 3 * known.nbytes, np.uint8)
        writer.add_chunks(f"raw.{known.name}", type_id, (3, known.values), lambda data=data: [data])
    writer.write()
    return path


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> type, shape and the bytes in the file, of all tensors."""
    with open_gguf(path) as model:
        return {name: (info.type_name, info.shape, raw(model, name)) for name, info in model.tensors.items()}


def raw(model: GgufFile, name: str) -> bytes:
    """A tensor's bytes, read apart from the reader's own way."""
    info = model.tensors[name]
    with model.paths[info.file_index].open("rb") as file:
        file.seek(info.offset)
        return file.read(info.nbytes)


def values(path: Path) -> dict[str, np.ndarray]:
    """Name -> float32 values of the logical shape."""
    with open_gguf(path) as model:
        return {name: model.tensor(name).dequantize() for name in model.names}
