"""`spore gguf quantize`: quantize a model."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.tools.output_file import OutputFile, WrittenFile
    from sporelm.tools.quantize_model import QuantizedModel, QuantizeOptions

FLOAT_NAME = re.compile(r"(.+[-.])(?:F32|F16|BF16)", re.IGNORECASE | re.DOTALL)


def make_parser() -> Parser:
    parser = Parser(
        "gguf quantize",
        "Quantize GGUF models to a mix of number formats, chosen per tensor like in llama.cpp's quantizer: Q4_K_M, "
        "Q5_K_M, Q6_K, Q8_0, Q3_K_S, IQ4_XS, TQ2_0, MXFP4_MOE, BF16 and others. An importance matrix ('spore gguf "
        "imatrix') says which columns of a weight matter most. Everything is streamed: memory use is a few MB.",
        "FILE... --type TYPE [-o OUT] [options]",
        [
            "spore gguf quantize model-F16.gguf --type Q4_K_M",
            "spore gguf quantize model.gguf --type Q3_K_M --imatrix imatrix.gguf -o small.gguf",
            "spore gguf quantize model.gguf --type Q4_K_M --tensor 'blk.*.ffn_down.weight=Q6_K' --output-type Q8_0",
            "spore gguf quantize 'models/*-BF16.gguf' --type Q6_K -o quantized/ --dry-run",
            "spore gguf quantize model.gguf --type Q4_K_M --no-data -o header.gguf",
        ],
    )
    gguf_inputs.add_files(parser, gguf_inputs.GGUF_FILES_HELP)
    parser.add_argument("-t", "--type", metavar="TYPE", help="the mix, such as Q4_K_M; any case")
    parser.add_argument("--imatrix", metavar="FILE", help="an importance matrix, .gguf or the older .dat")
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="PATTERN=TYPE",
        help="type of tensors whose full name matches (* ? [...] a|b, !PATTERN for all others); may be repeated, and "
        "the first match counts",
    )  # fmt: skip
    parser.add_argument("--output-type", metavar="TYPE", help="type of the output matrix")
    parser.add_argument("--embedding-type", metavar="TYPE", help="type of the token embeddings")
    parser.add_argument("--pure", action="store_true", help="use the mix's main type for every matrix")
    parser.add_argument(
        "--allow-requantize", action="store_true", help="requantize quantized tensors too, at a loss of quality"
    )
    parser.add_argument("--keep-split", action="store_true", help="write as many files as a split model has")
    gguf_output.add_threads(parser)
    gguf_output.add_no_data(parser)
    gguf_output.add_output(
        parser, "a file, or a folder for NAME-TYPE.gguf; default: the folder of FILE; if stored, the current folder"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    from time import perf_counter

    from sporelm.tools import output_file
    from sporelm.tools.lazy_model import open_lazy_model
    from sporelm.tools.quantize_model import plan_outputs, quantize_model

    gguf_output.choose_num_threads(args)  # fails before any file is opened
    recipe = make_recipe(args)
    start = perf_counter()
    paths, all_found = find_inputs(args)

    def quantize_one(path: Path) -> "tuple[QuantizedModel, list[OutputFile]]":
        quantized = quantize_model(open_lazy_model(path), recipe)
        destination = gguf_output.output_path(path, args.output, default_name(path, recipe.mix.name))
        return quantized, plan_outputs(quantized, destination, keep_split=args.keep_split)

    models = gguf_inputs.try_each(paths, quantize_one)
    output_file.check_output_paths([file.path for _, files in models.values() for file in files], args.force)
    for path, (quantized, _) in models.items():
        for warning in quantized.warnings:
            gguf_inputs.print_problem(f"{path.name}: {warning}")
    written = gguf_output.save_each({path: files for path, (_, files) in models.items()}, args)
    if written:
        files = [file for written_files in written.values() for file in written_files]
        print_result(args, recipe, [models[path][0] for path in written], files, perf_counter() - start)
    return 0 if all_found and len(written) == len(paths) else 1


def find_inputs(args: argparse.Namespace) -> tuple[list[Path], bool]:
    """Return the models to quantize, and whether each word has one.

    Raises ModelNotFound for a word without a model that may have been meant as the output.
    """
    from sporelm.errors import ModelNotFound
    from sporelm.tools.model_files import find_models

    if args.output is not None or len(args.files) == 1:
        return gguf_inputs.find_all(args.files)
    try:
        return find_models(args.files), True
    except ModelNotFound as reason:
        raise ModelNotFound(f"{reason}; name the output with -o") from None


def make_recipe(args: argparse.Namespace) -> "QuantizeOptions":
    """Return the recipe that the options describe. Raises UsageError."""
    from sporelm.errors import UsageError
    from sporelm.tools.imatrix_file import read_imatrix
    from sporelm.tools.quantize_model import (
        QuantizeOptions,
        list_quantizable_mixes,
        parse_format,
        parse_mix,
        parse_override,
    )

    if args.type is None:
        raise UsageError(f"--type is missing: one of {', '.join(list_quantizable_mixes())}")
    return QuantizeOptions(
        mix=parse_mix(args.type),
        overrides=tuple(parse_override(text) for text in args.tensor),
        output=parse_format("--output-type", args.output_type) if args.output_type else None,
        embedding=parse_format("--embedding-type", args.embedding_type) if args.embedding_type else None,
        pure=args.pure,
        allow_requantize=args.allow_requantize,
        imatrix=read_imatrix(Path(args.imatrix).expanduser()) if args.imatrix else None,
    )


def default_name(path: Path, mix: str) -> str:
    """Return the name of the output: "model-F16.gguf" and "model.gguf" become "model-Q4_K_M.gguf"."""
    from sporelm.tools.split_model import strip_split_suffix

    stem = strip_split_suffix(path)
    match = FLOAT_NAME.fullmatch(stem)
    return f"{match[1] if match else stem + '-'}{mix}.gguf"


def print_result(
    args: argparse.Namespace,
    recipe: "QuantizeOptions",
    quantized: "list[QuantizedModel]",
    written: "list[WrittenFile]",
    seconds: float,
) -> None:
    """Print the written files, and the change in size."""
    models: list[dict[str, Any]] = [each.as_json() for each in quantized]
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
