"""Grammar-constrained output with llguidance: checks, translation to Lark, compilation, and token masks."""
