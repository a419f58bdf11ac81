"""What a server is to be: one frozen object, made of flags, the environment and a TOML file, in this order."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm import settings
from sporelm.engine.sizes import size_in_bytes
from sporelm.errors import RequestError, shown
from sporelm.serve.keys import ApiKey, read_keys
from sporelm.text.budget import GRAMMAR_SECONDS, RENDER_SECONDS
from sporelm.weights.text_file import read_text_file

if TYPE_CHECKING:
    from sporelm.api.adapters import LoraAdapter

HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
LONGEST_CONFIG = 1 << 20  # bytes
LOGS = ("text", "json")
ENGINE = {
    "backend": str, "device": str, "threads": int, "max_context": int, "kv": str, "kv_memory": str, "eager": bool,
    "speculate": str, "draft_model": str, "max_batch": int, "token_budget": int, "chat_template": str,
}  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be asked for by name; `path` is MODEL as everywhere, None the default one."""

    name: str
    path: str | None

    def __post_init__(self) -> None:
        if MODEL_NAME.fullmatch(self.name) is None or ".." in self.name:
            raise RequestError(
                f"a model's name is {shown(self.name)}: take letters, digits and ._:/@-, 128 at most, a letter or a "
                "digit first, no '..'"
            )
        if self.path == "":
            raise RequestError(f"the model {self.name!r} has no file or name to be found by: give NAME=MODEL")

    @classmethod
    def of(cls, text: str) -> "ModelSpec":
        """From NAME=MODEL, or MODEL alone, which is then known by the last part of its path."""
        name, sign, path = text.partition("=")
        if sign and "/" not in name.rstrip("/"):
            return cls(name, path)
        return cls(name_for(text), text)


def name_for(path: str) -> str:
    """What a model is called whose user gave it no name: the last part of its path, without what cannot be in one."""
    last = re.split(r"[/\\]", path.rstrip("/\\"))[-1].removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._:@-]+", "-", last).strip("-.")[:128] or "model"


@dataclass(frozen=True)
class ServeConfig:
    """Everything a server is told. Raises RequestError for a value that cannot be.

    models            by name; the first one answers requests that name none
    any_model_name    the first one answers requests for an unknown name, too
    adapters          (LoRA) of the first model; requests that name none have the first one
    keys              API keys; without any, everybody may ask
    engine            options of `LLM` for every model
    model_memory      bytes that models which are loaded together take; those unused longest go first. None: no limit
    idle_seconds      after which a model that nobody uses is unloaded; 0: never
    keep_alive_keys   names of the API keys whose requests may say when a model is unloaded. None: all may
    max_waiting       requests of a model that wait; more get 429
    max_prompts       answers that one request may ask for, prompts times n
    max_messages      of one chat
    max_tokens        of one answer; None: what the context has room for
    max_body          bytes of a request's body
    max_bodies        bytes of the bodies of all requests that are being answered; more get 503. None: 256 MiB, or four
                      of the largest bodies, if that is more
    max_headers       bytes of a request's headers, its first line included
    head_seconds      in which a request's headers, and body_seconds, in which its body must have come
    request_seconds   in which an answer must be made; what is late ends with an error that says so
    write_seconds     in which a reader must take what was sent; slower ones are disconnected
    shutdown_seconds  in which streams are finished after a signal to end
    render_seconds    of CPU that rendering a chat may take, beside 0.2 ms for each message
    grammar_seconds   of CPU that compiling a request's grammar may take
    stall_seconds     after which an engine that does not come to the end of a step is taken for dead
    max_connections   open connections; more get 503
    max_sessions      sessions of /infer that are awake; those unused longest sleep on disk, or go
    session_dir       where they sleep and conversations are kept; None: those in the user's data folder
    cors_origins      web origins whose pages may ask; none: none but our own
    allowed_hosts     names under which the server may be asked for, besides those of its own address
    tls_cert, tls_key files in PEM form; both, or none
    log               text or json
    engine_file       options of `engine` that a file says, by whose names there errors call them
    """

    models: tuple[ModelSpec, ...] = (ModelSpec("smollm2", None),)
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[ApiKey, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    model_memory: int | None = None
    idle_seconds: float = 0.0
    keep_alive_keys: tuple[str, ...] | None = None
    max_waiting: int = 256
    max_prompts: int = 1024
    max_messages: int = 4096
    max_tokens: int | None = None
    max_body: int = 8 << 20
    max_bodies: int | None = None
    max_headers: int = 32 << 10
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    request_seconds: float = 600.0
    write_seconds: float = 60.0
    shutdown_seconds: float = 30.0
    render_seconds: float = RENDER_SECONDS
    grammar_seconds: float = GRAMMAR_SECONDS
    stall_seconds: float = 4.0
    max_connections: int = 1024
    max_sessions: int = 64
    session_dir: Path | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log: str = "text"
    engine_file: frozenset[str] = frozenset()
    any_model_name: bool = False
    adapters: "tuple[LoraAdapter, ...]" = ()

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name} is {value}: it must be from {low} to {high}")
        if not self.models:
            raise RequestError("no model is named: give one, as NAME=PATH")
        names = [model.name for model in self.models]
        if twice := [name for name in names if names.count(name) > 1]:
            raise RequestError(f"two models are called {twice[0]!r}: give each one its own name, as --model NAME=MODEL")
        if self.max_bodies is not None and self.max_bodies < self.max_body:
            raise RequestError(
                f"max_bodies is {self.max_bodies}: it must be at least max_body, which is {self.max_body}"
            )
        for name in set(self.keep_alive_keys or ()) - {key.owner for key in self.keys}:
            raise RequestError(f"keep_alive_keys has {shown(name)}, which is the name of no API key: give NAME:SECRET")
        if self.log not in LOGS:
            raise RequestError(f"log is {shown(self.log)}: it must be {' or '.join(LOGS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RequestError("TLS needs both files: give tls_cert and tls_key")
        for origin in self.cors_origins:
            if re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin) is None:
                raise RequestError(f"a CORS origin is {shown(origin)}: give scheme://host[:port], without a path")
        for name in self.allowed_hosts:
            if HOST_NAME.fullmatch(name) is None and not _is_address(name):
                raise RequestError(f"an allowed host is {shown(name)}: give a name alone, without scheme, port or path")

    @property
    def all_bodies(self) -> int:
        """`max_bodies`, whatever was said."""
        return max(256 << 20, 4 * self.max_body) if self.max_bodies is None else self.max_bodies

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can ask."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on all addresses of the machine."""
        try:
            return not self.host or ip_address(self.host).is_unspecified
        except ValueError:
            return False


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "model_memory": (1, 1 << 50),
    "idle_seconds": (0, 1e9),
    "max_waiting": (1, 1_000_000),
    "max_prompts": (1, 1_000_000),
    "max_messages": (1, 1_000_000),
    "max_tokens": (1, (1 << 31) - 1),
    "max_body": (1 << 10, 1 << 30),
    "max_bodies": (1 << 10, 1 << 40),
    "max_headers": (1 << 10, 1 << 20),
    "max_connections": (1, 1_000_000),
    "max_sessions": (1, 1_000_000),
    "stall_seconds": (0.1, 3600),
    "render_seconds": (0.01, 60),
    "grammar_seconds": (0.01, 60),
} | {f"{name}_seconds": (0.1, 1e6) for name in ("head", "body", "request", "write", "shutdown")}

_TEXTS = ("host", "log")
_PATHS = ("session_dir", "tls_cert", "tls_key")
_BOOLEANS = ("any_model_name",)
_LISTS = ("cors_origins", "allowed_hosts", "keep_alive_keys", "adapters")
_SIZES = ("model_memory", "max_body", "max_bodies")


def load(flags: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """The configuration: what `flags` say (None: nothing), else the environment, else the file, else the defaults.

    `flags` may have every field by its name, `models` as NAME=PATH texts, `api_keys` as texts, `api_keys_file`. Raises
    RequestError that says where a wrong value stands.
    """
    place = file or (Path(settings.SERVE_CONFIG.value) if settings.SERVE_CONFIG.value else None)
    found: dict[str, Any] = {}
    if place is not None:
        found |= from_file(place)
    found |= from_environment()
    found |= {name: value for name, value in flags.items() if value is not None and name != "engine"}
    written = dict(found.get("engine", {}))
    flagged = {k: v for k, v in flags.get("engine", {}).items() if v is not None}
    found |= {"engine": written | flagged, "engine_file": frozenset(written.keys() - flagged.keys())}
    keys = [ApiKey.of(text) for text in found.pop("api_keys", ())]
    if (key_file := found.pop("api_keys_file", None)) is not None:
        keys += read_keys(Path(key_file))
    if "models" in found:
        found["models"] = tuple(each if isinstance(each, ModelSpec) else ModelSpec.of(each) for each in found["models"])
    if "adapters" in found:
        from sporelm.api.adapters import LoraAdapter

        given = found["adapters"]
        found["adapters"] = tuple(LoraAdapter.parse(each) if isinstance(each, str) else each for each in given)
    for name in _SIZES:
        if isinstance(found.get(name), str):
            found[name] = size_in_bytes(name, found[name])
    return ServeConfig(**{**found, "keys": tuple(keys)})


def from_environment() -> dict[str, Any]:
    """What the settings of the environment say."""
    found: dict[str, Any] = {}
    if settings.SERVE_HOST.value:
        found["host"] = settings.SERVE_HOST.value
    if settings.SERVE_PORT.integer is not None:
        found["port"] = settings.SERVE_PORT.integer
    if settings.API_KEY.value:
        found["api_keys"] = [settings.API_KEY.value]
    if settings.API_KEYS_FILE.value:
        found["api_keys_file"] = settings.API_KEYS_FILE.value
    return found


def from_file(path: Path) -> dict[str, Any]:
    """What a TOML file says: fields by name, tables [models] and [engine]. Raises RequestError that names the file."""
    text = read_text_file(path, "the configuration", LONGEST_CONFIG).removeprefix("\ufeff")  # editors put it there
    try:
        return {name: checked(name, value) for name, value in tomllib.loads(text).items()}
    except (tomllib.TOMLDecodeError, RecursionError) as reason:
        raise RequestError(f"{shown(str(path), 200)} is no TOML: {reason}") from None
    except RequestError as reason:
        raise RequestError(f"{shown(str(path), 200)}: {reason}") from None


def checked(name: str, value: Any) -> Any:
    """A value of the file, of its field's type. Raises RequestError for an unknown field or a wrong type."""
    if name == "models":
        texts = _typed(name, value, dict)
        return [ModelSpec(each, _typed(f"models.{each}", path, str)) for each, path in texts.items()]
    if name == "engine":
        options = _typed(name, value, dict)
        for option, given in options.items():
            if option not in ENGINE:
                raise RequestError(f"engine.{option} is unknown: there are {', '.join(ENGINE)}")
            if not (option == "kv_memory" and type(given) is int):
                _typed(f"engine.{option}", given, ENGINE[option])
        return options
    if name in ("api_keys", *_LISTS):
        return tuple(_typed(f"each of {name}", each, str) for each in _typed(name, value, list))
    if name in (*_TEXTS, "api_keys_file"):
        return _typed(name, value, str)
    if name in _BOOLEANS:
        return _typed(name, value, bool)
    if name in _PATHS:
        return Path(_typed(name, value, str)).expanduser()
    known = [each.name for each in fields(ServeConfig) if each.name not in ("keys", "engine_file")]
    if name not in known:
        raise RequestError(f"{name[:60]!r} is unknown: there are {', '.join([*known, 'api_keys', 'api_keys_file'])}")
    if name in _SIZES and isinstance(value, str):
        return value
    return _typed(name, value, float if name.endswith("_seconds") else int)


def _typed(name: str, value: Any, kind: type) -> Any:
    words = {dict: "a table", list: "a list", str: "a text", int: "a whole number", float: "a number", bool: "a truth"}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise RequestError(f"{name} is {shown(value)}: it must be {words[kind]}")
    return value
