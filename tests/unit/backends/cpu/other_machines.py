"""Kernels for machines that are not this one: what a model needs, and what the objects expect of the system."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sporelm.backends.cpu import CpuBackend, targets
from sporelm.backends.cpu import cpu_backend as cpu_backend
from sporelm.backends.cpu.jit.kernel import Traceable
from sporelm.backends.cpu.targets.amx import Amx
from sporelm.backends.cpu.targets.arm import Neon, NeonDotprod, NeonI8mm
from sporelm.backends.cpu.targets.x86 import Avx2, Avx512Vnni, AvxVnni, GenericX86
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.engine import LoadedModel, Worker
from sporelm.models import build
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.quant import FORMATS
from tiny_files import write_gguf
from tiny_models import LLAMA, Tiny

AVX512 = "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni,+avx2,+fma,+f16c"
AVX2_TARGET, AVX_VNNI = Avx2(), AvxVnni(cpu="alderlake", features="+avx2,+fma,+f16c,+avxvnni")
AVX512_VNNI = Avx512Vnni(cpu="icelake-server", features=AVX512)
AMX = Amx(cpu="sapphirerapids", features=AVX512 + ",+amx-tile,+amx-int8")
APPLE_M1 = NeonDotprod(cpu="apple-m1")

# triples as the package itself uses them: on Windows objects are ELF, which LLVM's loader knows best
WINDOWS, WINDOWS_COFF = "x86_64-pc-windows-msvc-elf", "x86_64-pc-windows-msvc"
MACOS_X86, MACOS_ARM = "x86_64-apple-darwin", "arm64-apple-darwin"
LINUX_X86, LINUX_ARM, ANDROID = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-linux-android"

MACHINES: list[tuple[str, Any]] = [
    (WINDOWS, AVX2_TARGET),
    (MACOS_ARM, APPLE_M1),
    (ANDROID, Neon()),
    (LINUX_ARM, NeonI8mm(cpu="neoverse-v1")),
    (WINDOWS, AVX512_VNNI),
    (LINUX_X86, AMX),
    (WINDOWS, GenericX86()),
    (WINDOWS_COFF, AVX_VNNI),
    (MACOS_X86, AVX2_TARGET),
    (MACOS_ARM, targets.CpuTarget(features="+neon")),
    (ANDROID, NeonDotprod()),
    (LINUX_ARM, Neon(cpu="cortex-a53")),
    (LINUX_X86, AVX_VNNI),
    (LINUX_X86, GenericX86()),
]


class Recorder:
    """Stands for the compiler: notes the kernels that are asked for, and compiles none."""

    def __init__(self, target: Any) -> None:
        self.target, self.kernels = target, dict[str, Traceable]()

    def address(self, kernel: Traceable) -> int:
        self.kernels[kernel.name] = kernel
        return 64

    def release_llvm_memory(self) -> None:
        return None


@contextmanager
def recording(target: Any) -> Iterator[tuple[CpuBackend, dict[str, Traceable]]]:
    """A CPU back-end of a machine that is elsewhere; nothing may be run on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_backend, "Compiler", Recorder)
        patch.setattr(cpu_backend.targets, "select_target", lambda name: target)
        patch.setattr(cpu_backend, "run_kernel", lambda compiler, kernel, *rest: compiler.address(kernel))
        backend = CpuBackend(threads=2)
        try:
            yield backend, backend.compiler.kernels  # type: ignore[attr-defined]
        finally:
            backend.close()


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}


def kernels_of_llama(folder: Path, target: Any, form: str, kv: str = "f16") -> dict[str, Traceable]:
    """Every kernel that loading a Llama with matrices of a format, and each of its programs, asks for."""
    tiny = Tiny("llama", LLAMA | SIZES | {"num_hidden_layers": 1}, 5)
    path = folder / f"{form}.gguf"
    if not path.exists():
        write_gguf(path, tiny, matrices=FORMATS[form])
    with recording(target) as (backend, kernels):
        source = open_model(path)
        model = build(source.config)
        weights = load_parameters(source, model.params(), backend)
        source.close()
        tables = {name: backend.tensor(table) for name, table in model.tables(128).items()}
        worker = Worker(LoadedModel(model, weights | tables), backend, kv=KV_TYPES[kv])
        worker.prepare()
        worker.close()
        return dict(kernels)


class Symbols(NamedTuple):
    """Names of an object's symbols."""

    defined: set[str]
    undefined: set[str]


def symbols(code: bytes) -> Symbols:
    """Of ELF (64 bits), Mach-O (64 bits) and COFF objects; files and sections are left out."""
    if code[:4] == b"\x7fELF":
        return _elf(code)
    if code[:4] == b"\xcf\xfa\xed\xfe":
        return _macho(code)
    return _coff(code)


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def _elf(code: bytes) -> Symbols:
    (sections,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, sections + size * n) for n in range(count)]
    found = Symbols(set(), set())
    for _, kind, _, _, offset, nbytes, link, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        for at in range(offset, offset + nbytes, 24):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if name:
                (found.defined if section else found.undefined).add(_text(code, headers[link][4] + name))
    return found


def _macho(code: bytes) -> Symbols:
    (commands,) = struct.unpack_from("<I", code, 16)
    at, found = 32, Symbols(set(), set())
    for _ in range(commands):
        command, nbytes, start, count, strings = struct.unpack_from("<IIIII", code, at)
        if command == 2:  # LC_SYMTAB
            for entry in range(start, start + 16 * count, 16):
                name, kind = struct.unpack_from("<IB", code, entry)
                found[kind & 0x0E == 0].add(_text(code, strings + name).removeprefix("_"))
        at += nbytes
    return found


def _coff(code: bytes) -> Symbols:
    start, count = struct.unpack_from("<II", code, 8)
    strings, found, index = start + 18 * count, Symbols(set(), set()), 0
    while index < count:
        at = start + 18 * index
        short, value, section, _, storage, more = struct.unpack_from("<8sIhHBB", code, at)
        (offset,) = struct.unpack_from("<I", short, 4)
        name = _text(code, strings + offset) if short[:4] == bytes(4) else short.rstrip(b"\0").decode()
        if storage == 2:  # external
            found[section == 0 and value == 0].add(name)
        index += 1 + more
    return found
