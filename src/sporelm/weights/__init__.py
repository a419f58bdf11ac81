"""The former place of `sporelm.files`, kept for programs that import `sporelm.weights.gguf` or `.safetensors`."""
