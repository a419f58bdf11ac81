"""`spore gguf to-hf`: convert a GGUF file to a Hugging Face folder."""

import argparse
from pathlib import Path

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line


def make_parser() -> Parser:
    parser = Parser(
        "gguf to-hf",
        "Convert a GGUF model to a Hugging Face folder that transformers loads: safetensors, config.json, "
        "generation_config.json, tokenizer.json and related files. Quantized weights are dequantized. What a folder "
        "cannot represent is noted on stderr, or is an error. Everything is streamed.",
        "FILE [options]",
        [
            "spore gguf to-hf model.gguf",
            "spore gguf to-hf model-Q4_K_M.gguf --dtype bf16 -o ./model",
            "spore gguf to-hf model.gguf --shard-size 2G --json",
            "spore gguf to-hf vocab.gguf --vocab-only -o ./tokenizer",
            "spore gguf to-hf model.gguf --mmproj mmproj.gguf -o ./model",
        ],
    )
    parser.add_argument("file", metavar="FILE", help=gguf_inputs.GGUF_FILE_HELP)
    parser.add_argument(
        "--dtype", default="auto", metavar="TYPE",
        help="type of the tensors: auto (lossless: floats unchanged, quantized weights as f32), f32, f16 or bf16; "
        "default: auto",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", default="5G", metavar="SIZE",
        help="maximum bytes of tensors per file: 500M or 2G, powers of 1000; 2Gi, powers of 1024; default: 5G",
    )  # fmt: skip
    parser.add_argument("--vocab-only", action="store_true", help="write only the tokenizer")
    parser.add_argument(
        "--mmproj", metavar="FILE", help="add the vision tower in this file: the folder is that of a model that sees"
    )
    gguf_output.add_threads(parser)
    gguf_output.add_output(
        parser, "a folder, created if needed; default: NAME-hf in the folder of FILE; if stored, in the current folder"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.gguf_inputs import find_one, print_json, print_problem
    from sporelm.cli.gguf_text import bytes_text
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.errors import UsageError
    from sporelm.tools.hf.save_folder import save_folder
    from sporelm.tools.hf.to_hf import to_hf
    from sporelm.tools.hf.vision_to_hf import add_tower
    from sporelm.tools.split_model import parse_size, strip_split_suffix

    shard_bytes = parse_size(args.shard_size.removesuffix("B"))
    path = find_one(args.file)
    if args.mmproj is not None and args.vocab_only:
        raise UsageError("--vocab-only writes no vision tower: leave out --mmproj")
    result = to_hf(path, dtype=args.dtype, vocab_only=args.vocab_only)
    if args.mmproj is not None:
        result = add_tower(result, find_one(args.mmproj), dtype=args.dtype)
    default = gguf_output.default_folder(path) / f"{strip_split_suffix(path)}-hf"
    folder = default if args.output is None else Path(args.output).expanduser()
    with ProgressLine() as progress, gguf_output.handle_signals():
        files = save_folder(
            result, folder, shard_bytes=shard_bytes, force=args.force, dry_run=args.dry_run,
            threads=gguf_output.choose_num_threads(args), progress=progress,
        )  # fmt: skip
    for note in result.notes:
        print_problem(f"note: {note}")
    if args.json:
        files_json = [file.as_json() for file in files]
        print_json({"written": not args.dry_run, "files": files_json, "notes": list(result.notes)})
        return
    print("would be written:" if args.dry_run else "written:")
    for file in files:
        tensors = f"  {file.tensors} tensors" if file.tensors else ""
        print(f"  {escape_line(str(file.path))}  {bytes_text(file.nbytes)}{tensors}")
