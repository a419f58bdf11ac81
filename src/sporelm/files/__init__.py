"""Files of models: GGUF and safetensors readers and writers, and the local store. Bytes and arrays, no models."""
