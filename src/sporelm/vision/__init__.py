"""Pictures: decoding, and the processors that turn them into the inputs of vision towers."""
