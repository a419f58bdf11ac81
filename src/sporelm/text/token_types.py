"""What a token is for, by numbers: the same in GGUF files (tokenizer.ggml.token_type) and in SentencePiece models."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
