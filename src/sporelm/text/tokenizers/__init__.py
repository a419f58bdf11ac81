"""Tokenizers: BPE, SentencePiece, unigram, WordPiece, PLaMo and RWKV, from GGUF files or Hugging Face folders."""
