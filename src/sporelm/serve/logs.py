"""What a server writes down of its requests: one line each, as text or as JSON; never what was asked or answered."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("sporelm.serve")


def start(kind: str) -> None:
    """Write what the server and uvicorn log to stderr, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    for name in ("sporelm", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """An object a line: time, level, message, and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=True)


class TextLines(logging.Formatter):
    """A line for people; control characters in what clients sent cannot make another one of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        words = [time.strftime("%H:%M:%S", time.localtime(record.created)), record.getMessage()]
        words += [f"{name}={value}" for name, value in fields.items() if value not in ("", None)]
        line = "".join(each if each.isprintable() else "?" for each in " ".join(words))
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def asked(fields: Mapping[str, Any]) -> None:
    """A request was answered."""
    log.info("%s %s %s", fields["method"], fields["path"], fields["status"], extra={"fields": dict(fields)})
