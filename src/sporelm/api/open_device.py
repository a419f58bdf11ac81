"""Open a back-end on a device."""

from sporelm.backends.backend_registry import HOST_BACKENDS, normalize_device, open_backend
from sporelm.backends.protocol import Backend
from sporelm.errors import BackendError

HOST_DTYPES = ("auto", "f32")


def open_device(
    name: str, device: str, threads: int, dtype: str = "auto", *, strict: bool = False, batch_invariant: bool = False
) -> Backend:
    """Open a back-end on a device, which computes in numbers of `dtype`. Raises BackendError.

    strict            an op for which it has no kernel is an error, instead of a fallback to the reference
    batch_invariant   a product's row depends on no other row of its step; on the host's back-ends that holds anyway
    """
    options: dict[str, str | int] = {"threads": threads}
    device = normalize_device(device)
    if name not in HOST_BACKENDS:
        options |= {"device": device} | ({} if dtype == "auto" else {"dtype": dtype})
        options |= {"batch_invariant": True} if batch_invariant else {}
    elif device != "cpu":
        raise BackendError(
            f"back-end {name!r}: no such device (got {device!r}; allowed 'cpu'). Set the option backend to the "
            "one that has this device (torch, cuda, opencl), or to auto."
        )
    elif dtype not in HOST_DTYPES:
        raise BackendError(
            f"back-end {name!r} computes in f32 (got dtype {dtype}; allowed {', '.join(HOST_DTYPES)}). Leave out the "
            "option dtype, or set the option backend to torch."
        )
    backend = open_backend(name, **options)
    if strict:
        backend.strict = True
    return backend
