"""Isolated child processes: work on untrusted input, limited in time and memory, for tenants in turns."""
