"""Writes src/sporelm/tools/hf/llama_cpp_tensors.json from llama.cpp's sources: what its loader takes from a GGUF file.

    python tests/data/make_llama_cpp_tensors.py LLAMA_CPP_CHECKOUT VERSION

For each architecture: the names of the tensors that it asks for, `blk.{}` standing for any layer, and whether it reads
the two bounds of YaRN. A file with a tensor that is not asked for is refused ("wrong number of tensors").
"""

import json
import re
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "src" / "sporelm" / "tools" / "hf" / "llama_cpp_tensors.json"
QKV = ("ATTN_QKV", "ATTN_Q", "ATTN_K", "ATTN_V")  # create_tensor_qkv: each with an optional bias
GATE_UP = ("FFN_GATE_UP_EXPS", "FFN_GATE_EXPS", "FFN_UP_EXPS")  # create_tensor_gate_up_exps


def function_bodies(text: str, method: str) -> dict[str, str]:
    """The body of `method` of each class in a source file."""
    found = {}
    for match in re.finditer(rf"void llama_model_(\w+)::{method}\([^)]*\)\s*(?:const\s*)?\{{", text):
        depth, place = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            place += 1
        found[match[1]] = text[match.end() : place]
    return found


def tensors_in(body: str, names: dict[str, str]) -> set[str]:
    """The tensors that a loader's body creates."""
    found = set()
    for kind, suffix in re.findall(r"tn\(\s*LLM_TENSOR_(\w+)\s*(?:,\s*\"(\w+)\")?", body):
        found.add(names[kind] + (f".{suffix}" if suffix else ""))
    if "create_tensor_qkv(" in body:
        found |= {f"{names[kind]}.{suffix}" for kind in QKV for suffix in ("weight", "bias")}
    if "create_tensor_gate_up_exps(" in body:
        found |= {f"{names[kind]}.weight" for kind in GATE_UP}
    return found


def main(checkout: Path, version: str) -> None:
    source = checkout / "src"
    arch = (source / "llama-arch.cpp").read_text()
    model = (source / "llama-model.cpp").read_text()
    header = (source / "models" / "models.h").read_text()
    named = re.findall(r"\{\s*LLM_TENSOR_(\w+),\s*\"([^\"]+)\"", arch)
    names = {kind: text.replace("%d", "{}") for kind, text in named}
    titles = dict(re.findall(r"\{\s*LLM_ARCH_(\w+),\s*\"([^\"]+)\"", arch))
    classes = dict(re.findall(r"case LLM_ARCH_(\w+):\s*return new llama_model_(\w+)\(", model))
    parents = dict(re.findall(r"struct llama_model_(\w+)\s*:\s*public llama_model_(\w+)", header))
    tensors: dict[str, set[str]] = {}
    bounds: dict[str, bool] = {}
    for path in sorted((source / "models").glob("*.cpp")):
        text = path.read_text()
        tensors |= {name: tensors_in(body, names) for name, body in function_bodies(text, "load_arch_tensors").items()}
        for name, body in function_bodies(text, "load_arch_hparams").items():
            bounds[name] = "YARN_BETA_FAST" in body
    found = {}
    for kind, name in classes.items():
        loader = name
        while loader not in tensors and loader in parents:
            loader = parents[loader]
        reader = name
        while reader not in bounds and reader in parents:
            reader = parents[reader]
        if loader in tensors:
            found[titles[kind]] = {"tensors": sorted(tensors[loader]), "yarn_bounds": bounds.get(reader, False)}
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(found.items())]
    body = ",\n".join(lines)
    OUT.write_text(f'{{"llama.cpp": {json.dumps(version)}, "architectures": {{\n{body}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
