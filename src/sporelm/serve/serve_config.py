"""ServeConfig: a server's configuration, from flags, the environment and a TOML file, in this order."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm import settings
from sporelm.errors import RequestError, safe_repr
from sporelm.files.text_file import read_text_file
from sporelm.serve.http.api_keys import ApiKey, read_api_keys
from sporelm.text.chat_templates.render_budget import RENDER_SECONDS
from sporelm.text.grammar.grammar_checks import GRAMMAR_SECONDS
from sporelm.units import size_in_bytes

if TYPE_CHECKING:
    from sporelm.api.lora_adapters import LoraAdapter

HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
MAX_CONFIG_BYTES = 1 << 20
LOG_FORMATS = ("text", "json")
ENGINE_OPTIONS = {
    "backend": str, "device": str, "threads": int, "max_context": int, "kv": str, "kv_memory": str, "eager": bool,
    "speculate": str, "draft_model": str, "max_batch": int, "token_budget": int, "chat_template": str,
    "dtype": str, "strict": bool, "batch_invariant": bool, "device_memory": str, "experts_on": str,
    "tp": int, "pp": int, "ep": bool, "tp_shares": list, "pp_layers": list, "rank_executor": str,
    "remote_ranks": int, "rank_listen": str, "rank_token_file": str, "rank_tls_cert": str, "rank_tls_key": str,
    "rank_devices": list, "micro_batches": int,
}  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """A model and the name that requests use for it; `path` is MODEL as everywhere, None for the default model.

    mmproj   GGUF file with its vision tower; None if it has none, or holds its own
    """

    name: str
    path: str | None
    mmproj: str | None = None

    def __post_init__(self) -> None:
        if MODEL_NAME.fullmatch(self.name) is None or ".." in self.name:
            raise RequestError(
                f"a model's name is {safe_repr(self.name)}: use letters, digits and ._:/@-, 128 at most, a letter or a "
                "digit first, no '..'"
            )
        if self.path == "":
            raise RequestError(f"the model {self.name!r} has no file or name: give NAME=MODEL")

    @classmethod
    def parse(cls, text: str) -> "ModelSpec":
        """Parse NAME=MODEL, or MODEL alone, which is named after the last part of its path."""
        name, sign, path = text.partition("=")
        if sign and "/" not in name.rstrip("/"):
            return cls(name, path)
        return cls(name_from_path(text), text)


def name_from_path(path: str) -> str:
    """Return the name of a model that was given none: the last part of its path, without characters that names lack."""
    last = re.split(r"[/\\]", path.rstrip("/\\"))[-1].removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._:@-]+", "-", last).strip("-.")[:128] or "model"


@dataclass(frozen=True)
class ServeConfig:
    """A server's whole configuration. Raises RequestError for an invalid value.

    models            by name; the first one answers requests that name none
    any_model_name    whether the first one answers requests for an unknown name, too
    adapters          LoRA adapters of the first model; the first is the default
    keys              API keys; without any, all requests are accepted
    engine            options of `LLM` for every model
    model_memory      bytes for all loaded models; the least recently used are unloaded. None: no limit
    idle_seconds      after which an unused model is unloaded; 0: never
    keep_alive_keys   names of the API keys whose requests may set `keep_alive`. None: all may
    max_waiting       queued requests of a model; more get 429
    max_prompts       answers that one request may ask for, prompts times n
    max_messages      of one chat
    max_tokens        of one answer; None: what the context has room for
    max_body          bytes of a request's body, without the data of its images
    max_image_body    bytes of a request's body with the data of its images, on routes that take images
    max_bodies        bytes of the bodies of all requests in progress; more get 503. None: 256 MiB, or four of the
                      largest bodies, if that is more
    max_headers       bytes of a request's headers, its first line included
    head_seconds      for receiving a request's headers
    body_seconds      for receiving a request's body
    request_seconds   for an answer; a late one ends with an error
    write_seconds     for a client to read what was sent; slower ones are disconnected
    shutdown_seconds  for finishing streams after a signal to end
    render_seconds    CPU time for rendering a chat, plus 0.2 ms for each message
    grammar_seconds   CPU time for compiling a request's grammar
    stall_seconds     after which an engine that does not finish a step counts as failed
    max_connections   open connections; more get 503
    max_sessions      sessions of /infer in memory; the least recently used are saved to files, or dropped
    session_dir       where sessions and conversations are stored; None: conversations in the user's data folder
    allow_image_hosts  host names from which images at remote URLs are fetched; none: such images are refused
    cors_origins      web origins whose pages may send requests; none: only the server's own
    allowed_hosts     host names that requests may use, besides those of the server's address
    tls_cert          certificate in PEM form, with tls_key
    tls_key           its key in PEM form
    log               text or json
    engine_options_from_file  options of `engine` that the file sets; errors use their names there
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
    max_image_body: int = 32 << 20
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
    allow_image_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log: str = "text"
    engine_options_from_file: frozenset[str] = frozenset()
    any_model_name: bool = False
    adapters: "tuple[LoraAdapter, ...]" = ()

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name} is {value}: it must be from {low} to {high}")
        if not self.models:
            raise RequestError("models is empty: give one, as NAME=PATH")
        names = [model.name for model in self.models]
        if duplicates := [name for name in names if names.count(name) > 1]:
            raise RequestError(
                f"two models have the name {duplicates[0]!r}: give each one its own name, as --model NAME=MODEL"
            )
        if self.max_bodies is not None and self.max_bodies < self.max_body:
            raise RequestError(
                f"max_bodies is {self.max_bodies}: it must be at least max_body, which is {self.max_body}"
            )
        for name in set(self.keep_alive_keys or ()) - {key.owner for key in self.keys}:
            raise RequestError(
                f"keep_alive_keys has {safe_repr(name)}, which is not the name of an API key: use NAME:SECRET"
            )
        if self.log not in LOG_FORMATS:
            raise RequestError(f"log is {safe_repr(self.log)}: it must be {' or '.join(LOG_FORMATS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RequestError("TLS needs both files: give tls_cert and tls_key")
        for origin in self.cors_origins:
            if re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin) is None:
                raise RequestError(f"a CORS origin is {safe_repr(origin)}: give scheme://host[:port], without a path")
        for name in self.allowed_hosts:
            if HOST_NAME.fullmatch(name) is None and not _is_address(name):
                raise RequestError(
                    f"an allowed host is {safe_repr(name)}: give a name alone, without scheme, port or path"
                )
        if self.allow_image_hosts:
            from sporelm.vision.image_fetching import ImageFetcher

            ImageFetcher(self.allow_image_hosts)  # checks them

    @property
    def max_bodies_bytes(self) -> int:
        """`max_bodies`, or its default."""
        return max(256 << 20, 4 * self.image_body_bytes) if self.max_bodies is None else self.max_bodies

    @property
    def image_body_bytes(self) -> int:
        """Bytes of the largest body with images: at least `max_body`, and at most those of all bodies together."""
        largest = max(self.max_body, self.max_image_body)
        return largest if self.max_bodies is None else min(largest, self.max_bodies)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether the server listens on all addresses of the machine."""
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
    "max_image_body": (1 << 10, 1 << 30),
    "max_bodies": (1 << 10, 1 << 40),
    "max_headers": (1 << 10, 1 << 20),
    "max_connections": (1, 1_000_000),
    "max_sessions": (1, 1_000_000),
    "stall_seconds": (0.1, 3600),
    "render_seconds": (0.01, 60),
    "grammar_seconds": (0.01, 60),
} | {f"{name}_seconds": (0.1, 1e6) for name in ("head", "body", "request", "write", "shutdown")}

_STRINGS = ("host", "log")
_PATHS = ("session_dir", "tls_cert", "tls_key")
_BOOLEANS = ("any_model_name",)
_LISTS = ("cors_origins", "allowed_hosts", "allow_image_hosts", "keep_alive_keys", "adapters")
_SIZES = ("model_memory", "max_body", "max_image_body", "max_bodies")


def load_config(flags: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """Return the configuration: `flags` go before the environment, then the file, then the defaults.

    `flags` may have every field by its name, `models` as NAME=PATH texts, `api_keys` as texts, `api_keys_file`; None is
    a flag that was not given. Raises RequestError, which names the source of an invalid value.
    """
    path = file or (Path(settings.SERVE_CONFIG.value) if settings.SERVE_CONFIG.value else None)
    values: dict[str, Any] = {}
    if path is not None:
        values |= values_from_file(path)
    values |= values_from_environment()
    values |= {name: value for name, value in flags.items() if value is not None and name != "engine"}
    file_options = dict(values.get("engine", {}))
    flag_options = {name: value for name, value in flags.get("engine", {}).items() if value is not None}
    values["engine"] = file_options | flag_options
    values["engine_options_from_file"] = frozenset(file_options.keys() - flag_options.keys())
    keys = [ApiKey.parse(text) for text in values.pop("api_keys", ())]
    if (key_file := values.pop("api_keys_file", None)) is not None:
        keys += read_api_keys(Path(key_file))
    if "models" in values:
        values["models"] = tuple(
            each if isinstance(each, ModelSpec) else ModelSpec.parse(each) for each in values["models"]
        )
    if "mmproj" in values:
        values["models"] = add_towers(values.get("models", ServeConfig.models), values.pop("mmproj"))
    if "adapters" in values:
        from sporelm.api.lora_adapters import LoraAdapter

        values["adapters"] = tuple(
            LoraAdapter.parse(each) if isinstance(each, str) else each for each in values["adapters"]
        )
    for name in _SIZES:
        if isinstance(values.get(name), str):
            values[name] = size_in_bytes(name, values[name])
    return ServeConfig(**{**values, "keys": tuple(keys)})


def add_towers(models: Sequence[ModelSpec], towers: Sequence[str]) -> tuple[ModelSpec, ...]:
    """Return models with their mmproj files, each given as NAME=FILE, or FILE for the first model.

    Raises RequestError for the name of no model, and for two files of one.
    """
    found, given = {spec.name: spec for spec in models}, set[str]()
    for text in towers:
        name, sign, file = text.partition("=")
        if not sign or "/" in name:
            name, file = next(iter(found)), text
        if name not in found or not file:
            known = ", ".join(found)
            raise RequestError(f"mmproj is {safe_repr(text, 200)}: give NAME=FILE, where NAME is a model ({known})")
        if name in given:
            raise RequestError(f"mmproj is given twice for the model {name!r}: give one file for each model")
        given.add(name)
        found[name] = replace(found[name], mmproj=file)
    return tuple(found.values())


def values_from_environment() -> dict[str, Any]:
    """Return the values that environment variables set."""
    values: dict[str, Any] = {}
    if settings.SERVE_HOST.value:
        values["host"] = settings.SERVE_HOST.value
    if settings.SERVE_PORT.integer is not None:
        values["port"] = settings.SERVE_PORT.integer
    if settings.API_KEY.value:
        values["api_keys"] = [settings.API_KEY.value]
    if settings.API_KEYS_FILE.value:
        values["api_keys_file"] = settings.API_KEYS_FILE.value
    return values


def values_from_file(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file: fields by name, tables [models] and [engine]. Raises RequestError, which names
    the file."""
    text = read_text_file(path, "the configuration", MAX_CONFIG_BYTES).removeprefix("\ufeff")  # editors add it
    try:
        return {name: checked_value(name, value) for name, value in tomllib.loads(text).items()}
    except (tomllib.TOMLDecodeError, RecursionError) as reason:
        raise RequestError(f"{safe_repr(str(path), 200)} is not valid TOML: {reason}") from None
    except RequestError as reason:
        raise RequestError(f"{safe_repr(str(path), 200)}: {reason}") from None


def checked_value(name: str, value: Any) -> Any:
    """Return a value of the file in its field's type. Raises RequestError for an unknown field or a wrong type."""
    if name == "models":
        paths = _require(name, value, dict)
        return [_read_spec(each, path) for each, path in paths.items()]
    if name == "engine":
        options = _require(name, value, dict)
        for option, given in options.items():
            if option not in ENGINE_OPTIONS:
                raise RequestError(f"engine.{option} is unknown: known are {', '.join(ENGINE_OPTIONS)}")
            if not (option in ("kv_memory", "device_memory") and type(given) is int):
                _require(f"engine.{option}", given, ENGINE_OPTIONS[option])
        return options
    if name in ("api_keys", *_LISTS):
        return tuple(_require(f"each of {name}", each, str) for each in _require(name, value, list))
    if name in (*_STRINGS, "api_keys_file"):
        return _require(name, value, str)
    if name in _BOOLEANS:
        return _require(name, value, bool)
    if name in _PATHS:
        return Path(_require(name, value, str)).expanduser()
    known = [each.name for each in fields(ServeConfig) if each.name not in ("keys", "engine_options_from_file")]
    if name not in known:
        raise RequestError(f"{name[:60]!r} is unknown: known are {', '.join([*known, 'api_keys', 'api_keys_file'])}")
    if name in _SIZES and isinstance(value, str):
        return value
    return _require(name, value, float if name.endswith("_seconds") else int)


def _read_spec(name: str, value: Any) -> ModelSpec:
    """Return a model of the file: MODEL, or a table of `model` and `mmproj`. Raises RequestError."""
    if not isinstance(value, dict):
        return ModelSpec(name, _require(f"models.{name}", value, str))
    if unknown := [key for key in value if key not in ("model", "mmproj")]:
        raise RequestError(f"models.{name}.{unknown[0][:60]} is unknown: known are model, mmproj")
    texts = {key: _require(f"models.{name}.{key}", text, str) for key, text in value.items()}
    if not texts.get("model"):
        raise RequestError(f"models.{name} has no model: give a file or a name")
    return ModelSpec(name, texts["model"], texts.get("mmproj"))


def _require(name: str, value: Any, required: type) -> Any:
    """Return a value of the required type. Raises RequestError for another type."""
    titles = {
        dict: "a table", list: "a list", str: "a string", int: "a whole number", float: "a number",
        bool: "true or false",
    }  # fmt: skip
    if required is float and type(value) is int:
        return float(value)
    if type(value) is not required:
        raise RequestError(f"{name} is {safe_repr(value)}: it must be {titles[required]}")
    return value
