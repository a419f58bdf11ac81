"""What a model is known by: keys and values that it computed are of no use to another."""

from hashlib import sha256

from sporelm.weights.load import ModelSource
from sporelm.weights.quantized.folder import QuantizedFolder

SAMPLE = 256  # bytes of each tensor that are looked at, at its beginning and at its end


def identity_of(source: ModelSource) -> str:
    """A hash of the configuration, of the names, types and shapes of all tensors, and of a few bytes of each."""
    digest = sha256(repr(source.config).encode())
    files = source.files.files if isinstance(source.files, QuantizedFolder) else source.files
    for name in sorted(files.tensors):
        info = files.tensors[name]
        digest.update(f"{name} {info.type_name} {info.shape}\n".encode())
        data = files.raw(name).data
        digest.update(data[:SAMPLE])
        digest.update(data[-SAMPLE:])
    return digest.hexdigest()
