"""Ranks of one model: the ranges of each, sharded and partial values, rules for ops on them, and their groups."""
