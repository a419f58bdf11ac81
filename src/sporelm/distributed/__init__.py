"""Ranks of one model: the ranges of each, values that are cut or partial, rules for ops on them, and their groups."""
