"""Token types: the same numbers in GGUF files (tokenizer.ggml.token_type) and in SentencePiece models."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
