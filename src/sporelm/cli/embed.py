"""`spore embed`: compute embeddings of texts and pictures."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from sporelm.cli import image_options, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import print_folded
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def make_parser() -> Parser:
    parser = Parser(
        "embed",
        "Print an embedding for each text and then for each picture, one line each. The dot product of two is their "
        "cosine similarity. Encoders such as BERT are made for this; with other models the hidden states are pooled. "
        "CLIP and SigLIP compare texts with pictures; to a model that sees, a picture is a prompt. A single argument "
        "is TEXT, or MODEL with -f or --image; of several arguments the first is MODEL.",
        "[MODEL] [TEXT ...] [-f FILE] [--image FILE] [options]",
        [
            "spore embed bge-small.gguf 'A river in France' 'The Loire'",
            "spore embed bge-small.gguf -f lines.txt --json",
            "spore embed clip-vit-base-patch32/ 'a cat' 'a dog' --image photo.jpg",
        ],
    )
    options.add_model_before(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
    options.add_lines(parser, "texts")
    image_options.add_images(parser, "a picture, for CLIP, SigLIP or a model that sees; may be repeated")
    image_options.add_mmproj(parser)
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls", "last"),
        metavar="HOW",
        help="mean of all positions, cls (the first), or last; default: as the model's files say, else mean",
    )
    parser.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="put this prompt of the model's folder before each text, such as query; default: as the folder says",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="truncate longer texts to the max_seq_length of the model's folder and to the context",
    )
    parser.add_argument("--no-normalize", action="store_true", help="do not scale vectors to length 1")
    options.add_json(parser, 'print {"model": ..., "vectors": [[...], ...]}')
    options.add_engine(parser, generates=False)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    has_others = args.file is not None or bool(args.images)
    if args.model is not None and not args.texts and not has_others:
        options.check_not_model(args.model, "TEXT")
        args.model, args.texts = None, [args.model]
    only_images = bool(args.images) and not args.texts and args.file is None
    texts = [] if only_images else options.read_lines(args.texts, args.file, "texts")
    pictures = image_options.read_pictures(args.images)
    name, vectors = _embed(args, texts, pictures)
    if args.json:
        print(json.dumps({"model": name, "vectors": vectors}))
        return
    for vector in vectors:
        print_folded(" ".join(f"{value:.6g}" for value in vector))


def _embed(
    args: argparse.Namespace, texts: list[str], pictures: list[image_options.Picture]
) -> tuple[str, list[list[float]]]:
    """Return the name of the model, and the vectors of texts and then of pictures."""
    path = _find_image_encoder(args)
    if path is not None:
        return _embed_by_image_encoder(args, path, texts, pictures)
    llm = options.open_model(args)
    try:
        for picture in pictures:
            image_options.check_picture(llm, picture)
        vectors = llm.embed(
            texts,
            images=[picture.data for picture in pictures],
            pooling=args.pooling,
            prompt_name=args.prompt_name,
            truncate=args.truncate,
            normalize=not args.no_normalize,
        )
        return llm.config.name, vectors.tolist()
    finally:
        llm.close()


def _find_image_encoder(args: argparse.Namespace) -> "Path | None":
    """Return the path of the model, if it is a folder of an image encoder."""
    from sporelm.api.image_text_encoder import is_image_encoder
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store

    with ProgressLine() as progress:
        path = store.resolve(args.model, progress)
    return path if is_image_encoder(path) else None


def _embed_by_image_encoder(
    args: argparse.Namespace, path: "Path", texts: list[str], pictures: list[image_options.Picture]
) -> tuple[str, list[list[float]]]:
    from sporelm.api.image_text_encoder import ImageTextEncoder
    from sporelm.cli.progress_line import ProgressLine

    for flag, value in (("--pooling", args.pooling), ("--prompt-name", args.prompt_name), ("--mmproj", args.mmproj)):
        if value is not None:
            raise UsageError(
                f"{flag}: CLIP and SigLIP have a pooling and towers of their own, and no prompts. Leave it out"
            )
    options.check_threads(args.threads)
    chosen: dict[str, Any] = options.select(args, "backend", "device", "dtype", "threads", "eager", "strict")
    with ProgressLine() as progress:
        encoder = ImageTextEncoder(path, **chosen, progress=progress)
    with encoder:
        for note in encoder.notes:
            sys.stderr.write(f"spore: {note}\n")
        how = {"normalize": not args.no_normalize}
        vectors = encoder.embed_texts(texts, truncate=args.truncate, **how).tolist() if texts else []
        for picture in pictures:
            try:
                vectors += encoder.embed_images([picture.data], **how).tolist()
            except RequestError as reason:
                raise RequestError(f"{picture.name}: {reason}") from None
        return encoder.config.name, vectors
