"""Back-ends, which run ops: the protocol, the registry, and one folder per back-end."""
