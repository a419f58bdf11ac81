"""Conformance of back-ends: cases of every op, one file per file of ops, and the check that compares results with the
ops' numpy references. `spore doctor --conformance` and the tests run the same cases."""
