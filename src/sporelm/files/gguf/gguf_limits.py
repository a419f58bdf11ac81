"""Constants of the GGUF format, and the limits beyond which a file is rejected as damaged.

Source: the GGUF specification in ggml's docs/gguf.md. The limits are ours, each far above what real files hold.
"""

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = 65_535  # the specification's own
MAX_TENSORS = 1 << 18
MAX_TENSOR_NAME_BYTES = 1024
MAX_RANK = 4
MAX_STRING_BYTES = 64 << 20  # one metadata string: a tokenizer.json may be embedded
MAX_ARRAY_STRINGS = 1 << 24
MAX_ARRAY_BYTES = 256 << 20  # one array of numbers
MAX_ARRAY_DEPTH = 4
MAX_INNER_ARRAYS = 1 << 16  # arrays inside arrays, in one file
