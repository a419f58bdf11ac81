"""Runs the Ascend back-end on torch's device without values, with the schemas and meta functions of torch_npu's wheel.

torch_npu_meta.py FOLDER schemas          print the schemas of the operators that the back-end calls
torch_npu_meta.py FOLDER model NAME       run eager, planned and padded steps of a tiny model
torch_npu_meta.py FOLDER buckets          run the padded steps of each kind of block
"""

import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.library import Library

LINES = re.compile(r"^\s*(?:- )?(?:func: )(\w+(?:\.\w+)?\(.*\) -> .*)$", re.MULTILINE)
CALLS: Counter[str] = Counter()
_LIBRARIES: list[Library] = []


def read_schemas(folder: Path) -> dict[str, str]:
    """Return the schemas of the wheel's yaml file, by name with overload."""
    text = Path(folder, "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml").read_text("utf-8")
    return {schema.partition("(")[0]: schema for schema in LINES.findall(text)}


def load_operators(folder: Path) -> dict[str, str]:
    """Define the wheel's operators, and load its meta functions. Return the schemas."""
    schemas = read_schemas(folder)
    library = Library("npu", "DEF")
    _LIBRARIES.append(library)
    for schema in schemas.values():
        try:
            library.define(schema.replace("'", '"'))
        except RuntimeError:
            continue  # types that only torch_npu's build knows; none of these is ours
    stub = types.ModuleType("torch_npu")
    stub.__path__ = [str(folder / "torch_npu")]
    for name in (
        "int4",
        "hifloat8",
        "float4_e1m2fn_x2",
        "float4_e2m1fn_x2",
        "float8_e8m0fnu",
        "float8_e4m3fn",
        "float8_e5m2",
    ):
        setattr(stub, name, 1 << 20)  # types that we never pass
    sys.modules["torch_npu"] = stub
    contents: dict[str, dict[str, Any]] = {
        "torch_npu.utils": {},
        "torch_npu.utils._error_code": {
            "ErrCode": type("ErrCode", (), {"__getattr__": lambda self, name: name})(),
            "ops_error": lambda code: f" ({code})",
        },
        "torch_npu.npu": {},
        "torch_npu.npu.utils": {"get_cann_version": lambda *args: "9.0.0", "_is_gte_cann_version": lambda *args: True},
        "torch_npu.npu._backends": {"get_soc_version": lambda: 220},
    }
    for name, values in contents.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        module.__path__ = []
        sys.modules[name] = module
    stub.npu = sys.modules["torch_npu.npu"]
    stub.npu.utils = sys.modules["torch_npu.npu.utils"]
    path = folder / "torch_npu/op_plugin/meta/_meta_registrations.py"
    source = path.read_text("utf-8")
    module = types.ModuleType("torch_npu_meta_registrations")
    exec(compile(source, str(path), "exec"), vars(module))  # loads nothing but torch
    sys.modules[module.__name__] = module
    return schemas


class CountCalls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the vendor's operators that run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "npu":
            CALLS[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1 << 18,  # the page tables of the largest bucket have as many
    "vocab_size": 131,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "internlm2": {
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "bias": False,
        "rope_scaling": None,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 200},
    "deepseek_v2": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "topk_method": "greedy",
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
}
NEEDED = {
    "llama": {
        "npu_fused_infer_attention_score",
        "npu_rms_norm",
        "npu_add_rms_norm",
        "npu_rotary_mul",
        "npu_swiglu",
        "npu_scatter_nd_update_",
    },
    "mixtral": {"npu_moe_gating_top_k_softmax", "npu_grouped_matmul"},
    "qwen2_moe": {"npu_moe_gating_top_k_softmax", "npu_grouped_matmul", "npu_swiglu"},
    "internlm2": {"npu_swiglu", "npu_weight_quant_batchmatmul"},
    "mistral": {"npu_fused_infer_attention_score", "npu_scatter_nd_update_"},
    "deepseek_v2": {"npu_fused_infer_attention_score_v2", "npu_scatter_nd_update_", "npu_grouped_matmul"},
    "tower": {"npu_fused_infer_attention_score"},
}


def open_meta(dtype: str) -> Any:
    """Open the back-end on the device without values."""
    from sporelm.backends.vendor.ascend import AscendBackend

    backend = AscendBackend(device="meta", dtype=dtype)
    state = backend.probe()
    assert not backend.obstacles, state
    return backend


def run_model(name: str, dtype: str) -> None:
    """Run steps of a tiny model: padded ones of several buckets, exact ones, and one op by op."""
    from sporelm.evals.meta_device import check_buckets

    config = SIZES | MODELS[name]
    for number_format, kv in (("F16", "f16"), ("Q8_0", "bf16"), ("Q4_0", "q8_0")):
        for is_padded in (True, False):
            backend = open_meta(dtype)
            if not is_padded:
                backend.traits = check_buckets.replace(backend.traits, input_buckets=None)
            with CountCalls():
                for step, padded in check_buckets._run_model(config, backend, number_format, kv, slice(0, None, 7)):
                    print(f"legal: {name} {dtype} {number_format} {kv} {'padded' if padded else 'exact'}: {step}")
            backend.close()
    missing = {f"npu::{each}" for each in NEEDED[name]} - CALLS.keys()
    if missing:
        print(f"illegal: {name} called none of {', '.join(sorted(missing))}")


def run_ops(name: str, dtype: str) -> None:
    """Call the function of each unfused op of a layer, as `--eager` does op by op."""
    import numpy as np

    backend = open_meta(dtype)
    functions, kind = backend.functions, backend.activation_type

    def rows(*shape: int, dtype: Any = kind) -> Any:
        return torch.zeros(shape, dtype=dtype, device="meta")

    int32 = torch.int32
    cache = rows(9, 2, 2, 64, 16)
    with CountCalls(), backend.on_device():
        for counts in ([1], [1, 1, 1], [7, 1, 70]):
            tokens, lengths = sum(counts), np.array([count + 64 for count in counts], np.int32)
            starts = np.cumsum([0, *counts]).astype(np.int32)
            x, gamma = rows(tokens, 64), rows(64, dtype=torch.float32)
            assert functions["rms_norm"](x, gamma, eps=1e-5).shape == x.shape
            assert functions["rms_norm"](x, gamma[:16], eps=1e-5).shape == x.shape  # each head, as Qwen3
            positions, table = rows(tokens, dtype=int32), rows(256, 16, dtype=torch.float32)
            for style, width in (("half", 16), ("adjacent", 16), ("half", 8)):
                options = {"head_dim": 16, "style": style}
                assert functions["rope"](x, positions, table[:, :width], **options).shape == x.shape
            functions["store_kv"](x[:, :32], x[:, :32], cache, positions)
            pages = rows(len(counts), 3, dtype=int32)
            for window in (None, 30, 200):
                found = functions["attention"](x, cache, starts, lengths, pages, scale=0.25, window=window)
                assert found.shape == x.shape
            weights, ids = functions["route"](rows(tokens, 6, dtype=torch.float32), k=2)
            assert weights.shape == ids.shape == (tokens, 2)
            run_latents(functions, rows, heads=16 if max(counts) < 17 else 128, counts=counts)
            print(f"legal: {name} {dtype} eager ops of {counts} rows")
    backend.close()


def run_latents(functions: Any, rows: Any, heads: int, counts: list[int]) -> None:
    """Store and attend to latents of DeepSeek's shape."""
    import numpy as np

    tokens = sum(counts)
    cache, slots = rows(9, 1, 1, 64, 576), rows(tokens, dtype=torch.int32)
    weight, table = rows(512, dtype=torch.float32), rows(256, 64, dtype=torch.float32)
    functions["store_latent"](rows(tokens, 576), weight, slots, table, cache, slots, eps=1e-6, style="adjacent")
    latent, q = rows(tokens, heads * 512), rows(tokens, heads * 192)
    starts, lengths = (np.array(each, np.int32) for each in (np.cumsum([0, *counts]), [count + 64 for count in counts]))
    pages = rows(len(counts), 3, dtype=torch.int32)
    found = functions["latent_attention"](latent, q, cache, starts, lengths, pages, heads=heads, scale=0.1)
    assert found.shape == latent.shape


def run_tower(dtype: str) -> None:
    """Run the attention of a vision tower: InternViT's heads of 64 numbers, and SigLIP's of 72."""
    import numpy as np

    from sporelm import ops

    backend = open_meta(dtype)
    with CountCalls():
        for head_dim, heads, rows in ((64, 4, 257), (72, 2, 196)):
            x = backend.tensor(np.zeros((3 * rows, heads * head_dim), np.float32))
            spans = np.repeat(np.arange(3, dtype=np.int32) * rows, rows)
            spans = backend.tensor(np.stack((spans, spans + rows), axis=1).astype(np.int32))
            # the device has no values: the op's own check of the spans is left out
            function = backend.functions["cross_attention"]
            bounds = np.stack((np.repeat(np.arange(3) * rows, rows), np.repeat(np.arange(1, 4) * rows, rows)), axis=1)
            narrow = x.storage.to(backend.activation_type)
            with backend.on_device():
                found = function(narrow, narrow, narrow, bounds.astype(np.int32), head_dim=head_dim, scale=0.1)
            assert found.shape == narrow.shape
            assert ops.cross_attention.name in backend.functions
            print(f"legal: tower {dtype} heads of {head_dim}, {rows} rows")
    if not CALLS["npu::npu_fused_infer_attention_score"]:
        print("illegal: the tower called no fused attention")
    backend.close()


def main() -> None:
    folder, command, *args = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "src"))
    schemas = load_operators(Path(folder))
    from sporelm.backends.vendor.ascend import TABLE
    from sporelm.backends.vendor.vendor_backend import count_fallbacks

    names = {operator.name.partition("::")[2] for fused in TABLE.by_op.values() for operator in fused.operators}
    if command == "schemas":
        for name in sorted(names | {"npu_weight_quant_batchmatmul"}):
            print(" ".join(schemas[name].replace("'", '"').split()))
    elif command == "model":
        (name,) = args
        for dtype in ("f16", "bf16"):
            if name == "internvl":
                run_tower(dtype)
                CALLS.clear()
            run_model("internlm2" if name == "internvl" else name, dtype)
            run_ops(name, dtype)
        for operator, count in sorted(CALLS.items()):
            print(f"{operator}: {count} calls")
        for reason, count in count_fallbacks().items():
            print(f"plain torch: {reason}: {count} calls")
    else:
        from sporelm.backends.backend_registry import OWN
        from sporelm.evals.meta_device.check_buckets import check_buckets

        OWN.setdefault("ascend", "sporelm.backends.vendor.ascend:AscendBackend")
        for row in check_buckets("ascend", {"device": "meta", "dtype": "bf16"}):
            print(f"{row['kind']}: {row['state']} {row['padded']} padded, {row['exact']} exact {row['error']}")


if __name__ == "__main__":
    main()
