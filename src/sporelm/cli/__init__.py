"""The command line: one file per command, each with `parser` and `run`; imported when needed."""
