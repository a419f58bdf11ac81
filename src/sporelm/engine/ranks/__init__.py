"""Ranks: the workers of one model, in threads, processes and on other hosts, which the engine sees as one worker."""
