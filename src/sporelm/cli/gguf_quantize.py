"""`spore gguf quantize`: round a model to fewer bits."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.tools.output import Output, Written
    from sporelm.tools.quantize import Quantized, Recipe

FLOAT_NAME = re.compile(r"(.+[-.])(?:F32|F16|BF16)", re.IGNORECASE | re.DOTALL)


def parser() -> Parser:
    made = Parser(
        "gguf quantize",
        "Round GGUF models to a mix of number formats, tensor by tensor as llama.cpp's quantizer chooses: Q4_K_M, "
        "Q5_K_M, Q6_K, Q8_0, Q3_K_S, IQ4_XS, TQ2_0, MXFP4_MOE, BF16 and others. An importance matrix ('spore gguf "
        "imatrix') says which columns of a weight matter most. Everything streams: a few MB are in memory at a time.",
        "FILE... --type TYPE [-o OUT] [options]",
        [
            "spore gguf quantize model-F16.gguf --type Q4_K_M",
            "spore gguf quantize model.gguf --type Q3_K_M --imatrix imatrix.gguf -o small.gguf",
            "spore gguf quantize model.gguf --type Q4_K_M --tensor 'blk.*.ffn_down.weight=Q6_K' --output-type Q8_0",
            "spore gguf quantize 'models/*-BF16.gguf' --type Q6_K -o quantized/ --dry-run",
        ],
    )
    made.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a .gguf file, the first file of a split model, a stored name or a pattern",
    )
    made.add_argument("-t", "--type", metavar="TYPE", help="the mix, such as Q4_K_M; any case")
    made.add_argument("--imatrix", metavar="FILE", help="an importance matrix, .gguf or the older .dat")
    made.add_argument(
        "--tensor", action="append", default=[], metavar="PATTERN=TYPE",
        help="another type for tensors whose whole name fits (* ? [...] a|b, !PATTERN for all others); may be "
        "repeated, and the first that fits counts",
    )  # fmt: skip
    made.add_argument("--output-type", metavar="TYPE", help="type of the matrix that gives the scores")
    made.add_argument("--embedding-type", metavar="TYPE", help="type of the token embeddings")
    made.add_argument("--pure", action="store_true", help="the mix's main type for every matrix")
    made.add_argument("--allow-requantize", action="store_true", help="take quantized tensors too: quality suffers")
    made.add_argument("--keep-split", action="store_true", help="of a split model write as many files")
    gguf_output.add_threads(made)
    gguf_output.add_output(
        made, "a file, or a folder for NAME-TYPE.gguf in it; default: beside FILE; if stored, the current folder"
    )
    return made


def run(args: argparse.Namespace) -> int:
    from time import perf_counter

    from sporelm.tools import output
    from sporelm.tools.lazy import open_model
    from sporelm.tools.quantize import outputs, quantize

    gguf_output.thread_count(args)  # is refused before anything is read
    recipe, began = recipe_of(args), perf_counter()
    paths, are_found = models_of(args)

    def quantized(path: Path) -> "tuple[Quantized, list[Output]]":
        made = quantize(open_model(path), recipe)
        place = gguf_output.place(path, args.output, default_name(path, recipe.mix.name))
        return made, outputs(made, place, keep_split=args.keep_split)

    models = gguf_inputs.attempted(paths, quantized)
    output.check_places([file.path for _, files in models.values() for file in files], args.force)
    for path, (made, _) in models.items():
        for warning in made.warnings:
            gguf_inputs.complain(f"{path.name}: {warning}")
    written = gguf_output.save_each({path: files for path, (_, files) in models.items()}, args)
    if written:
        told = [file for files in written.values() for file in files]
        tell(args, recipe, [models[path][0] for path in written], told, perf_counter() - began)
    return 0 if are_found and len(written) == len(paths) else 1


def models_of(args: argparse.Namespace) -> tuple[list[Path], bool]:
    """The models to quantize, and whether each word had one. Raises ModelNotFound where a word without one may have
    been meant as the output."""
    from sporelm.errors import ModelNotFound
    from sporelm.tools.sources import find_models

    if args.output is not None or len(args.files) == 1:
        return gguf_inputs.found_models(args.files)
    try:
        return find_models(args.files), True
    except ModelNotFound as reason:
        raise ModelNotFound(f"{reason}; the file to write is named with -o") from None


def recipe_of(args: argparse.Namespace) -> "Recipe":
    """What the options ask for. Raises UsageError."""
    from sporelm.errors import UsageError
    from sporelm.tools.imatrix_file import read_imatrix
    from sporelm.tools.quantize import Recipe, makeable, parse_format, parse_mix, parse_override

    if args.type is None:
        raise UsageError(f"--type is missing: one of {', '.join(makeable())}")
    return Recipe(
        mix=parse_mix(args.type),
        overrides=tuple(parse_override(text) for text in args.tensor),
        output=parse_format("--output-type", args.output_type) if args.output_type else None,
        embedding=parse_format("--embedding-type", args.embedding_type) if args.embedding_type else None,
        pure=args.pure,
        allow_requantize=args.allow_requantize,
        imatrix=read_imatrix(Path(args.imatrix).expanduser()) if args.imatrix else None,
    )


def default_name(path: Path, mix: str) -> str:
    """ "model-F16.gguf" -> "model-Q4_K_M.gguf", "model.gguf" -> "model-Q4_K_M.gguf"."""
    from sporelm.tools.split import stem_of

    stem = stem_of(path)
    found = FLOAT_NAME.fullmatch(stem)
    return f"{found[1] if found else stem + '-'}{mix}.gguf"


def tell(
    args: argparse.Namespace, recipe: "Recipe", made: "list[Quantized]", written: "list[Written]", seconds: float
) -> None:
    """Print what was written, and what became of the sizes."""
    models: list[dict[str, Any]] = [quantized.as_json() for quantized in made]
    if args.json:
        gguf_inputs.print_json(
            {
                "written": not args.dry_run,
                "type": recipe.mix.name,
                "files": [file.as_json() for file in written],
                "models": models,
                "seconds": round(seconds, 3),
            }
        )
        return
    from sporelm.cli.gguf_text import bytes_text

    gguf_output.print_table(written, args.dry_run)
    for model in models:
        sizes = f"{bytes_text(model['bytes_before'])} -> {bytes_text(model['bytes_after'])}"
        bits = f"{model['bits_per_weight_before']:g} -> {model['bits_per_weight']:g} bits per weight"
        print(f"{recipe.mix.name}: {sizes}, {bits}; {', '.join(f'{n} {name}' for name, n in model['types'].items())}")
    print(f"{seconds:.1f} s")
