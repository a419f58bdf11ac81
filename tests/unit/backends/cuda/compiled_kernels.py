"""Kernels compiled for cards that are not here, from recorded launches, and what their machine code uses."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

# Compute capabilities: A100, RTX 30, RTX 40 and L4, H100, RTX 50. Without --all only the most different ones are tried.
COMMON_CARDS = (86, 90)
CARDS = [pytest.param(card, marks=[] if card in COMMON_CARDS else [pytest.mark.all]) for card in (80, 86, 89, 90, 120)]
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}  # that a program may have
ALIGNMENT = 16
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
TYPES = {
    "torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float8_e4m3fn": "fp8e4nv",
    "torch.uint8": "u8", "torch.int8": "i8", "torch.int16": "i16", "torch.int32": "i32", "torch.int64": "i64",
    "torch.bool": "i1",
}  # fmt: skip


def on_each_card(*values: Any) -> list[Any]:
    """Return these values with each of `CARDS`, for `parametrize`."""
    return [pytest.param(*values, *card.values, marks=card.marks) for card in CARDS]


def require_compiler() -> None:
    """Skip a test where kernels cannot be compiled."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from sporelm.backends.cuda.numbers import IS_INTERPRETED

    if IS_INTERPRETED:
        pytest.skip("under TRITON_INTERPRET=1 kernels are not compiled")


@dataclass(frozen=True)
class MachineCode:
    """The resources and instructions of a kernel on a card."""

    registers: int  # of a thread
    stack_bytes: int
    shared_bytes: int
    sass: str

    def instructions(self, name: str) -> list[str]:
        """Return the instructions whose name begins so, with their operands."""
        return re.findall(rf"\b{re.escape(name)}[^;]*;", self.sass)

    @property
    def uses_tensor_cores(self) -> bool:
        return bool(re.search(r"\b(HMMA|IMMA|QMMA|HGMMA|QGMMA|IGMMA)\b", self.sass))


def record_launches(work: Callable[[], Any]) -> list[Any]:
    """Return the launches of some work on tensors of the host: nothing is computed."""
    from sporelm.backends.cuda.launch import launch

    with launch.recording() as launches:
        work()
    return launches


def compile_launch(each: Any, card: int) -> MachineCode:
    """Compile a recorded launch for a card, specialized as Triton does at a launch: for 1, and for multiples of 16."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[tuple[int], Any] = {}
    options = {name: value for name, value in each.options.items() if name in OPTIONS}
    given = dict(zip(each.kernel.arg_names, each.args, strict=False)) | {
        name: value for name, value in each.options.items() if name not in OPTIONS
    }
    for place, parameter in enumerate(each.kernel.params):
        value = given.get(parameter.name, parameter.default)
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if hasattr(value, "data_ptr"):
            signature[parameter.name] = f"*{TYPES[str(value.dtype)]}"
            is_aligned = value.data_ptr() % ALIGNMENT == 0
        elif isinstance(value, int):
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            is_aligned = value % ALIGNMENT == 0
        else:
            signature[parameter.name], is_aligned = "fp32", False
        if is_aligned and not parameter.do_not_specialize:
            aligned[place,] = [["tt.divisibility", ALIGNMENT]]
    frozen = tuple((name, constants[name]) for name in constants)
    return _compile(each.kernel, tuple(signature.items()), frozen, tuple(aligned), card, tuple(sorted(options.items())))


@cache
def _compile(
    kernel: Any, signature: Any, constants: Any, aligned: Any, card: int, options: tuple[tuple[str, int], ...]
) -> MachineCode:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=kernel,
        signature=dict(signature),
        constexprs=dict(constants),
        attrs={place: [["tt.divisibility", ALIGNMENT]] for place in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", card, 32), options=dict(options))
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage, sass = (
            subprocess.run([tools / words[0], *words[1:], cubin], capture_output=True, text=True, check=True).stdout
            for words in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[-1]) for name in ("REG", "STACK"))
    return MachineCode(registers, stack, compiled.metadata.shared, sass)
