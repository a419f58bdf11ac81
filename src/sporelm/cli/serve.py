"""`spore serve`: models behind OpenAI's, Anthropic's and Ollama's APIs, and a chat in the browser."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import lora, options
from sporelm.cli.parser import Parser
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.serve.config import ServeConfig

LIMITS = (
    ("max-waiting", int, "N", "requests of a model that wait; more get 429; default: 256"),
    ("max-prompts", int, "N", "answers that one request may ask for; default: 1024"),
    ("max-body", str, "SIZE", "of a request's body; default: 8M"),
    ("max-connections", int, "N", "open connections; default: 1024"),
    ("request-seconds", float, "S", "in which an answer must be made; default: 600"),
    ("render-seconds", float, "S", "of CPU that rendering a chat may take; default: 0.2"),
    ("grammar-seconds", float, "S", "of CPU that compiling a request's grammar may take; default: 1"),
    ("shutdown-seconds", float, "S", "in which streams are finished after Ctrl-C or a signal; default: 30"),
    ("idle-seconds", float, "S", "after which a model that nobody uses is unloaded; default: 0, never"),
    ("model-memory", str, "SIZE", "of loaded models with their KV caches (--kv-memory); the longest unused go first"),
    ("max-sessions", int, "N", "sessions of /infer that are awake; default: 64"),
)


def parser() -> Parser:
    made = Parser(
        "serve",
        "Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, sessions, and a chat in the browser at /. "
        "Flags go before the environment, and that before the file of --config.",
        "[MODEL] [options]",
        [
            "spore serve",
            "spore serve --model small=smollm2 --model big=model.gguf --model-memory 8G",
            "spore serve model.gguf --lora sql=sql-adapter --lora tone=tone.gguf@0.5",
            "spore serve --host 0.0.0.0 --api-keys-file keys.txt --tls-cert cert.pem --tls-key key.pem",
        ],
    )
    options.add_model(made)
    made.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME=MODEL",
        help="a model that can be asked for by name, loaded when it first is; may be repeated",
    )
    made.add_argument(
        "--any-model-name",
        action="store_true",
        help="answer requests for an unknown model's name with the first model, instead of 404",
    )
    made.add_argument("--config", metavar="FILE", help="a TOML file with any of these (SPORE_SERVE_CONFIG)")
    made.add_argument("--host", metavar="H", help="address to listen on; default: 127.0.0.1 (SPORE_HOST)")
    made.add_argument("--port", type=int, metavar="P", help="0: any that is free; default: 8000 (SPORE_PORT)")
    options.add_chat_template(made, f"{options.TEMPLATE_HELP}; for every model")
    made.add_argument(
        "--session-dir",
        metavar="DIR",
        help="where sessions sleep, by default nowhere, and where the web chat keeps its conversations, by default in "
        "the user's data folder",
    )
    made.add_argument("--log", choices=("text", "json"), help="how requests are logged; default: text")
    access = made.add_argument_group("who may ask")
    access.add_argument(
        "--api-key", action="append", metavar="KEY", help="SECRET or NAME:SECRET; may be repeated (SPORE_API_KEY)"
    )
    access.add_argument("--api-keys-file", metavar="FILE", help="one key a line (SPORE_API_KEYS_FILE)")
    access.add_argument("--cors-origin", action="append", metavar="URL", help="an origin whose pages may ask")
    access.add_argument("--allowed-host", action="append", metavar="NAME", help="a name this server is asked for by")
    access.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM form")
    access.add_argument("--tls-key", metavar="FILE", help="its key, in PEM form")
    limits = made.add_argument_group("limits")
    for name, kind, metavar, text in LIMITS:
        limits.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    limits.add_argument("--max-batch", type=int, metavar="N", help="requests that run together; default: 16")
    options.add_engine(made)
    lora.add_lora(
        made,
        "a LoRA adapter of the first model, a PEFT folder or a .gguf file, as [NAME=]PATH[@SCALE]; may be repeated: "
        "answers use the first one, or the one that a request's field adapter names",
    )
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    config = configuration(args)  # first, so that what is wrong is told before a server is imported
    check_models(config)

    from sporelm.cli.progress import ProgressLine
    from sporelm.serve.listening import serve

    with ProgressLine() as progress:
        serve(config, progress, announce=lambda line: sys.stderr.write(f"spore: {line}\n"))
    return 0


def check_models(config: "ServeConfig") -> None:
    """Check that the models that are loaded on demand exist. Raises ModelNotFound.

    Models of a hub and known models, which the first request for them may fetch, are not looked for. The first model
    is loaded at the start, and reports its own errors.
    """
    from sporelm.weights import store
    from sporelm.weights.store.address import HUB_MARK

    for spec in config.models[1:]:
        if spec.path is not None and spec.path not in store.KNOWN and not spec.path.startswith(HUB_MARK):
            store.resolve(spec.path, fetch=False)


def configuration(args: argparse.Namespace) -> "ServeConfig":
    """What the options, the environment and the file say together. Raises UsageError."""
    from sporelm.serve.config import ENGINE, load

    options.check_threads(args.threads)
    flags: dict[str, Any] = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name, *_ in LIMITS}
    models = [*([args.model] if args.model else []), *(args.models or [])]
    flags |= {
        "models": models or None,
        "host": args.host,
        "port": args.port,
        "log": args.log,
        "adapters": tuple(lora.adapters(args)) or None,
        "any_model_name": args.any_model_name or None,
        "api_keys": args.api_key,
        "api_keys_file": args.api_keys_file,
        "cors_origins": tuple(args.cors_origin) if args.cors_origin else None,
        "allowed_hosts": tuple(args.allowed_host) if args.allowed_host else None,
    }
    for name in ("session_dir", "tls_cert", "tls_key"):
        flags[name] = Path(getattr(args, name)).expanduser() if getattr(args, name) else None
    engine = {name: getattr(args, name, None) for name in ENGINE}
    if engine["device"] == "cpu":  # the default, which a file may change
        engine["device"] = None
    engine["eager"] = engine["eager"] or None
    flags["engine"] = engine
    try:
        return load(flags, Path(args.config).expanduser() if args.config else None)
    except RequestError as reason:
        raise UsageError(str(reason)) from None
