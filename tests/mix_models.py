"""Shapes of synthetic models that meet every rule of the mixes, and a call of llama.cpp's quantizer on them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.quant import F16, F32
from sporelm.quant.quant_mixes import ModelTraits
from sporelm.quant.stored_tensor import StoredTensor


@dataclass(frozen=True)
class MixModel:
    """A model by its numbers; its matrices have few rows, since only their widths matter."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    width: int = 256
    ffn: int = 512
    experts: int = 0
    architecture: str = "llama"
    tied: bool = False
    parts: tuple[str, ...] = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

    @property
    def traits(self) -> ModelTraits:
        return ModelTraits(self.architecture, self.layers, self.heads, self.kv_heads, self.experts)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> logical shape of every tensor."""
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (4, self.width), "output_norm.weight": (self.width,)}
        for layer in range(self.layers):
            at = f"blk.{layer}."
            found[f"{at}attn_norm.weight"] = (self.width,)
            for part in self.parts:
                into = self.ffn if "down" in part else self.width
                stack = (max(2, self.experts),) if part.endswith("_exps") else ()
                names = [f"{part}.{expert}" for expert in range(self.experts)] if part.endswith(".N") else [part]
                for name in names:
                    found[f"{at}{name.replace('.N', '')}.weight"] = (*stack, 3, into)
        return found if self.tied else found | {"output.weight": (4, self.width)}


STACKS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
MODELS = (
    MixModel("grouped", 17, 8, 2),
    MixModel("all heads", 12, 4, 4, tied=True),
    MixModel("narrow", 9, 9, 3, 96, 1536, tied=True),
    MixModel("odd", 4, 2, 1, 40, 264),
    MixModel("eight experts", 16, 8, 2, experts=8, parts=STACKS),
    MixModel("five experts", 8, 6, 3, experts=5, parts=(*STACKS, *SHARED)),
    MixModel("old experts", 3, 4, 4, experts=8, parts=("attn_v", "ffn_gate.N", "ffn_up.N", "ffn_down.N")),
    MixModel("falcon", 17, 4, 1, architecture="falcon", parts=FUSED),
    MixModel("fused", 10, 4, 2, parts=FUSED),
    MixModel("70b", 80, 16, 2, parts=("attn_v", "ffn_down")),
)


def write(model: MixModel, path: Path) -> Path:
    """The model as a file that llama.cpp's quantizer takes."""
    writer, random = GgufWriter(path), np.random.default_rng(5)
    writer.add("general.architecture", model.architecture)
    for key, value in {
        "block_count": model.layers, "context_length": 64, "embedding_length": model.width, "vocab_size": 4,
        "feed_forward_length": model.ffn, "attention.head_count": model.heads, "expert_count": model.experts,
        "attention.head_count_kv": model.kv_heads, "expert_used_count": min(2, model.experts),
    }.items():  # fmt: skip
        writer.add(f"{model.architecture}.{key}", value, "u32")
    for kind in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        writer.add(f"{model.architecture}.attention.{kind}", 1e-5, "f32")
    for name, shape in model.shapes().items():
        values, form = random.standard_normal(shape).astype(np.float32), F32 if len(shape) == 1 else F16
        data = np.ascontiguousarray(values.astype("<f2" if form is F16 else "<f4"))
        writer.add_tensor(name, StoredTensor(name, form, shape, data.reshape(-1).view(np.uint8)))
    writer.write()
    return path


def peer_types(quantizer: Path, model: Path, mix: str, options: tuple[str, ...] = ()) -> dict[str, str] | None:
    """Run llama-quantize; return the type of each tensor, with the file type as "general.file_type"; None: refused."""
    out = model.with_suffix(".peer")
    out.unlink(missing_ok=True)
    command = [str(quantizer), *options, str(model), str(out), mix, "1"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    if done.returncode:
        return None
    with open_gguf(out) as found:
        types = {name: info.type_name for name, info in found.tensors.items()}
        return types | {"general.file_type": str(found.metadata["general.file_type"])}
