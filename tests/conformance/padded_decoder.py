"""The tiny decoder on a back-end that takes padded steps."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.tiny_decoder import SEQUENCES, TinyDecoder
from conformance.tiny_decoder import TABLE as PAGES_EACH
from sporelm.backends.protocol import InputBuckets
from sporelm.evals.conformance.conformance_case import On
from sporelm.tensor.dtype import F32

BUCKETS = InputBuckets(
    row_block=16, decodes=(0, 1, 2, 4), blocks=(0, 1, 2, 4, 8, 16), pages=(PAGES_EACH, 2 * PAGES_EACH), outputs=(1, 8)
)
DUMP_PAGE = SEQUENCES * PAGES_EACH


def padded_decoder(backend: Any, format_name: str) -> TinyDecoder:
    """Return a tiny decoder whose cache has one more page, into which padded rows are written."""
    backend.traits = replace(backend.traits, input_buckets=BUCKETS)
    decoder = TinyDecoder(On(backend, format_name), format_name)
    backend.free_pages([decoder.cache])
    kept = decoder.cache.shape[2], decoder.cache.shape[4]
    decoder.cache = backend.allocate_pages(DUMP_PAGE + 1, [kept], F32)[0]
    return decoder


def on_device(backend: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the arrays as handles."""
    return {name: backend.tensor(array).storage for name, array in arrays.items()}
