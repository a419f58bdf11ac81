"""`spore gguf from-hf`: convert a Hugging Face folder to a GGUF file."""

import argparse

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def make_parser() -> Parser:
    parser = Parser(
        "gguf from-hf",
        "Convert a Hugging Face folder (config.json, safetensors, tokenizer) to a GGUF file that llama.cpp loads too: "
        "with its keys, tensor names and order of weights, the tokenizer and chat templates. What GGUF cannot "
        "represent is noted on stderr, or is an error. Everything is streamed.",
        "FOLDER [options]",
        [
            "spore gguf from-hf ./SmolLM2-135M-Instruct",
            "spore gguf from-hf ./Llama-3.2-1B --type q8_0 -o llama.gguf",
            "spore gguf from-hf ./my-model --pre qwen2 --json",
            "spore gguf from-hf ./my-model --vocab-only -o vocab.gguf",
            "spore gguf from-hf ./my-model --split-max-size 2G --no-tensor-first-split --dry-run",
            "spore gguf from-hf ./my-model --split-max-tensors 128 -o parts/",
            "spore gguf from-hf ./my-model --no-data -o header.gguf",
            "spore gguf from-hf ./Qwen2-VL-2B-Instruct --mmproj --type f16 -o mmproj.gguf",
        ],
    )
    parser.add_argument("folder", metavar="FOLDER", help="a Hugging Face folder, or a stored name")
    parser.add_argument(
        "--type", default="auto", metavar="TYPE",
        help="type of the matrices: auto (floats unchanged), f32, f16, bf16 or q8_0; vectors are f32; default: auto",
    )  # fmt: skip
    parser.add_argument(
        "--pre", metavar="NAME",
        help="pre-tokenizer (tokenizer.ggml.pre), if it is not recognized; it is not verified",
    )  # fmt: skip
    parser.add_argument("--vocab-only", action="store_true", help="write only the tokenizer")
    parser.add_argument(
        "--mmproj", action="store_true",
        help="write only the vision tower, as the mmproj file that llama.cpp and --mmproj of 'spore run' take",
    )  # fmt: skip
    parser.add_argument(
        "--split-max-tensors", type=int, metavar="N", help="maximum tensors per file; default: one file for all"
    )
    parser.add_argument(
        "--split-max-size", metavar="SIZE",
        help="maximum bytes of tensors per file, as --max-size of 'spore gguf split'; default: one file for all",
    )  # fmt: skip
    parser.add_argument(
        "--no-tensor-first-split", action="store_true", help="the first of several files has only metadata"
    )
    gguf_output.add_threads(parser)
    gguf_output.add_no_data(parser)
    gguf_output.add_output(
        parser, "a file, or a folder for NAME-TYPE.gguf; default: the parent of FOLDER; if stored, the current folder"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.gguf_inputs import find_one, print_problem
    from sporelm.errors import UsageError
    from sporelm.tools.hf.from_hf import from_hf
    from sporelm.tools.hf.mmproj_from_hf import mmproj_from_hf
    from sporelm.tools.split_model import choose_cut, split_above_limit

    cut = choose_cut(args.split_max_tensors, args.split_max_size, prefix="--split-")
    folder = find_one(args.folder)
    if args.mmproj:
        if args.vocab_only or args.pre is not None:
            raise UsageError("--mmproj writes no tokenizer: leave out --vocab-only and --pre")
        result = mmproj_from_hf(folder, type_name=args.type)
    else:
        result = from_hf(folder, type_name=args.type, pre=args.pre, vocab_only=args.vocab_only)
    kind = "vocab" if args.vocab_only else _file_type(result.model)
    kind = f"mmproj-{kind}" if args.mmproj else kind
    path = gguf_output.output_path(folder.resolve(), args.output, f"{folder.resolve().name}-{kind}.gguf")
    outputs = split_above_limit(result.model, path, cut, no_tensor_first=args.no_tensor_first_split)
    gguf_output.save(outputs, args, notes=list(result.notes))
    for note in result.notes:
        print_problem(f"note: {note}")


def _file_type(model: object) -> str:
    """Return the type for the file name."""
    from sporelm.tools.file_types import FILE_TYPES
    from sporelm.tools.lazy_model import LazyModel

    assert isinstance(model, LazyModel)
    return FILE_TYPES.get(model.value("general.file_type"), "mixed")
