"""Chat templates: rendering in a sandbox, into prompts whose characters are marked as template text or content."""
