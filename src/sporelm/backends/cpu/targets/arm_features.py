"""Detection of the extensions of a 64-bit Arm CPU by the system: LLVM knows them on few systems."""

import contextlib
import ctypes
import sys

# Linux: the kernel's list of capabilities for programs (arch/arm64/include/uapi/asm/hwcap.h)
AT_HWCAP, AT_HWCAP2 = 16, 26
HWCAP_DOTPROD, HWCAP2_I8MM = 1 << 20, 1 << 13
# Windows: IsProcessorFeaturePresent (winnt.h); older systems do not know I8MM and return false
PF_DOTPROD, PF_I8MM = 43, 66
# macOS: sysctl, by the names of the architecture
SYSCTL = {"dotprod": b"hw.optional.arm.FEAT_DotProd", "i8mm": b"hw.optional.arm.FEAT_I8MM"}


def arm_features() -> dict[str, bool]:
    """Return whether this CPU has "dotprod" and "i8mm"; neither if the system does not report them."""
    with contextlib.suppress(AttributeError, OSError):  # a C library without the function
        if sys.platform == "win32":
            present = ctypes.windll.kernel32.IsProcessorFeaturePresent
            return {"dotprod": bool(present(PF_DOTPROD)), "i8mm": bool(present(PF_I8MM))}
        if sys.platform == "darwin":
            return {name: _sysctl(entry) for name, entry in SYSCTL.items()}
        ask = ctypes.CDLL(None).getauxval
        ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
        return {"dotprod": bool(ask(AT_HWCAP) & HWCAP_DOTPROD), "i8mm": bool(ask(AT_HWCAP2) & HWCAP2_I8MM)}
    return {}


def _sysctl(entry: bytes) -> bool:
    """Return whether an entry exists and is not 0."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    failed = ctypes.CDLL(None).sysctlbyname(entry, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and bool(value.value)
