"""`spore serve`: serve models over the APIs of OpenAI, Anthropic and Ollama, with a web chat."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import lora_options, options, rank_options
from sporelm.cli.parser import Parser
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.serve.serve_config import ServeConfig

LIMITS = (
    ("max-waiting", int, "N", "maximum waiting requests of a model; more get 429; default: 256"),
    ("max-prompts", int, "N", "maximum completions that one request may ask for; default: 1024"),
    ("max-body", str, "SIZE", "maximum size of a request body without its images; default: 8M"),
    ("max-image-body", str, "SIZE", "maximum size of a request body with images; default: 32M"),
    ("max-connections", int, "N", "maximum open connections; default: 1024"),
    ("request-seconds", float, "S", "maximum time to answer a request; default: 600"),
    ("render-seconds", float, "S", "maximum CPU time for rendering a chat; default: 0.2"),
    ("grammar-seconds", float, "S", "maximum CPU time for compiling a request's grammar; default: 1"),
    ("shutdown-seconds", float, "S", "time to finish streams after Ctrl-C or a signal; default: 30"),
    ("idle-seconds", float, "S", "idle time after which a model is unloaded; default: 0, never"),
    ("model-memory", str, "SIZE", "maximum memory of loaded models with their KV caches (--kv-memory); the least "
     "recently used are unloaded first"),
    ("max-sessions", int, "N", "maximum sessions of /infer in memory; default: 64"),
)  # fmt: skip


def make_parser() -> Parser:
    parser = Parser(
        "serve",
        "Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, sessions, and a web chat at /. Options take "
        "precedence over the environment, and that over the file of --config.",
        "[MODEL] [options]",
        [
            "spore serve",
            "spore serve --model small=smollm2 --model big=model.gguf --model-memory 8G",
            "spore serve model.gguf --lora sql=sql-adapter --lora tone=tone.gguf@0.5",
            "spore serve model.gguf --tp 2",
            "spore serve model.gguf --tp 2 --remote-ranks 1 --rank-listen 10.0.0.1:7000 --rank-token-file token",
            "spore serve --model eyes=model.gguf --mmproj eyes=mmproj.gguf",
            "spore serve --host 0.0.0.0 --api-keys-file keys.txt --tls-cert cert.pem --tls-key key.pem",
        ],
    )
    options.add_model(parser)
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME=MODEL",
        help="a model that requests can name, loaded when it is first requested; may be repeated",
    )
    parser.add_argument(
        "--any-model-name",
        action="store_true",
        help="answer requests for an unknown model with the first model, instead of 404",
    )
    parser.add_argument(
        "--mmproj",
        action="append",
        metavar="[NAME=]FILE",
        help="GGUF file with the vision tower of the model NAME, of the first model without a name; may be repeated",
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with any of these options (SPORE_SERVE_CONFIG)")
    parser.add_argument("--host", metavar="H", help="address to listen on; default: 127.0.0.1 (SPORE_HOST)")
    parser.add_argument(
        "--port", type=int, metavar="P", help="port to listen on; 0: any free port; default: 8000 (SPORE_PORT)"
    )
    options.add_chat_template(parser, f"{options.TEMPLATE_HELP}; for every model")
    parser.add_argument(
        "--session-dir",
        metavar="DIR",
        help="folder of sessions on disk (default: none) and of the web chat's conversations (default: in the user's "
        "data folder)",
    )
    parser.add_argument("--log", choices=("text", "json"), help="format of the request log; default: text")
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key", action="append", metavar="KEY", help="SECRET or NAME:SECRET; may be repeated (SPORE_API_KEY)"
    )
    access.add_argument("--api-keys-file", metavar="FILE", help="one key per line (SPORE_API_KEYS_FILE)")
    access.add_argument("--cors-origin", action="append", metavar="URL", help="an origin whose pages may send requests")
    access.add_argument("--allowed-host", action="append", metavar="NAME", help="a host name of this server")
    access.add_argument(
        "--allow-image-host",
        action="append",
        metavar="NAME",
        help="a host from which images at http(s) URLs are fetched; may be repeated; default: none",
    )
    access.add_argument("--tls-cert", metavar="FILE", help="certificate in PEM format")
    access.add_argument("--tls-key", metavar="FILE", help="private key in PEM format")
    limits = parser.add_argument_group("limits")
    for name, kind, metavar, text in LIMITS:
        limits.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    limits.add_argument("--max-batch", type=int, metavar="N", help="maximum requests in a batch; default: 16")
    options.add_engine(parser)
    lora_options.add_lora(
        parser,
        "a LoRA adapter of the first model, a PEFT folder or a .gguf file, as [NAME=]PATH[@SCALE]; may be repeated: "
        "the first one is used unless a request's field adapter names another",
    )
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    config = parse_config(args)  # first, so that errors are reported before the server is imported
    check_models(config)

    from sporelm.cli.progress_line import ProgressLine
    from sporelm.serve.uvicorn_runner import serve

    with ProgressLine() as progress:
        serve(config, progress, announce=lambda line: sys.stderr.write(f"spore: {line}\n"))
    return 0


def check_models(config: "ServeConfig") -> None:
    """Check that the models that are loaded on demand exist. Raises ModelNotFound.

    Models of a hub and known models are not checked, since the first request may download them. The first model is
    loaded at the start, which reports its errors.
    """
    from sporelm.files import store
    from sporelm.files.store.hub_address import HUB_MARK

    for spec in config.models:
        if spec.mmproj is not None and not spec.mmproj.startswith(HUB_MARK):
            store.resolve(spec.mmproj, fetch=False)
    for spec in config.models[1:]:
        if spec.path is not None and spec.path not in store.KNOWN and not spec.path.startswith(HUB_MARK):
            store.resolve(spec.path, fetch=False)


def parse_config(args: argparse.Namespace) -> "ServeConfig":
    """Return the settings of options, environment and file combined. Raises UsageError."""
    from sporelm.serve.serve_config import ENGINE_OPTIONS, load_config

    options.check_threads(args.threads)
    rank_options.select_ranks(args)
    flags: dict[str, Any] = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name, *_ in LIMITS}
    models = [*([args.model] if args.model else []), *(args.models or [])]
    flags |= {
        "models": models or None,
        "mmproj": args.mmproj,
        "host": args.host,
        "port": args.port,
        "log": args.log,
        "adapters": tuple(lora_options.parse_lora(args)) or None,
        "any_model_name": args.any_model_name or None,
        "api_keys": args.api_key,
        "api_keys_file": args.api_keys_file,
        "cors_origins": tuple(args.cors_origin) if args.cors_origin else None,
        "allowed_hosts": tuple(args.allowed_host) if args.allowed_host else None,
        "allow_image_hosts": tuple(args.allow_image_host) if args.allow_image_host else None,
    }
    for name in ("session_dir", "tls_cert", "tls_key"):
        flags[name] = Path(getattr(args, name)).expanduser() if getattr(args, name) else None
    engine = {name: getattr(args, name, None) for name in ENGINE_OPTIONS}
    for name in ("tp_shares", "pp_layers", "rank_devices"):
        if engine[name] is not None:
            engine[name] = list(getattr(args, name))
    if engine["device"] == "cpu":  # the default, which a file may change
        engine["device"] = None
    if engine["dtype"] == "auto":
        engine["dtype"] = None
    # The default is False, which a file may change.
    for name in ("eager", "strict", "batch_invariant", "ep"):
        engine[name] = engine[name] or None
    flags["engine"] = engine
    try:
        return load_config(flags, Path(args.config).expanduser() if args.config else None)
    except RequestError as reason:
        raise UsageError(str(reason)) from None
