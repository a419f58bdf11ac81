"""The log of requests: one line each, as text or as JSON. Prompts and answers are never logged."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("sporelm.serve")


def configure_logging(log_format: str) -> None:
    """Log the server and uvicorn to stderr, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if log_format == "json" else TextLogFormatter())
    for name in ("sporelm", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class JsonLogFormatter(logging.Formatter):
    """One object a line: time, level, message, and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True)


class TextLogFormatter(logging.Formatter):
    """One line of text. Control characters of clients are replaced, so that they cannot start another line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        words = [time.strftime("%H:%M:%S", time.localtime(record.created)), record.getMessage()]
        words += [f"{name}={value}" for name, value in fields.items() if value not in ("", None)]
        line = "".join(each if each.isprintable() else "?" for each in " ".join(words))
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def log_request(fields: Mapping[str, Any]) -> None:
    """Log a request that was answered."""
    log.info("%s %s %s", fields["method"], fields["path"], fields["status"], extra={"fields": dict(fields)})
