"""Warnings that are logged once a process."""

from functools import cache
from logging import Logger


@cache
def warn_once(log: Logger, message: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    log.warning("%s", message)
