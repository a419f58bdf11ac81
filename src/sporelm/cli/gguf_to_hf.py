"""`spore gguf to-hf`: a GGUF file as a Hugging Face folder."""

import argparse
from pathlib import Path

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def parser() -> Parser:
    made = Parser(
        "gguf to-hf",
        "Write a GGUF model as a Hugging Face folder: safetensors, config.json, generation_config.json, tokenizer.json "
        "and what belongs to it, which transformers loads. Quantized weights become their values. What a folder "
        "cannot say is told on stderr, or refused. Everything streams.",
        "FILE [options]",
        [
            "spore gguf to-hf model.gguf",
            "spore gguf to-hf model-Q4_K_M.gguf --dtype bf16 -o ./model",
            "spore gguf to-hf model.gguf --shard-size 2G --json",
            "spore gguf to-hf vocab.gguf --vocab-only -o ./tokenizer",
        ],
    )
    made.add_argument("file", metavar="FILE", help="a .gguf file, the first file of a split model, or a stored name")
    made.add_argument(
        "--dtype", default="auto", metavar="TYPE",
        help="of the tensors: auto (nothing is lost: floats as they are, quantized weights as f32), f32, f16 or bf16; "
        "default: auto",
    )  # fmt: skip
    made.add_argument(
        "--shard-size", default="5G", metavar="SIZE",
        help="bytes of tensors in a file at most: 500M or 2G, powers of 1000; 2Gi, powers of 1024; default: 5G",
    )  # fmt: skip
    made.add_argument("--vocab-only", action="store_true", help="write the tokenizer alone")
    gguf_output.add_threads(made)
    gguf_output.add_output(
        made, "a folder, made if it is not there; default: NAME-hf beside FILE; if stored, the current folder"
    )
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.gguf_inputs import complain, one_model, print_json
    from sporelm.cli.gguf_text import bytes_text, plain
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools.hf.save_folder import save_folder
    from sporelm.tools.hf.to_hf import to_hf
    from sporelm.tools.split import parse_size, stem_of

    size = parse_size(args.shard_size.removesuffix("B"))
    path = one_model(args.file)
    found = to_hf(path, dtype=args.dtype, vocab_only=args.vocab_only)
    default = gguf_output.beside(path) / f"{stem_of(path)}-hf"
    folder = default if args.output is None else Path(args.output).expanduser()
    with ProgressLine() as progress, gguf_output.ended_by_signals():
        files = save_folder(
            found, folder, shard_bytes=size, force=args.force, dry_run=args.dry_run,
            threads=gguf_output.thread_count(args), progress=progress,
        )  # fmt: skip
    for note in found.notes:
        complain(f"note: {note}")
    if args.json:
        files_json = [file.as_json() for file in files]
        print_json({"written": not args.dry_run, "files": files_json, "notes": list(found.notes)})
        return
    print("would be written:" if args.dry_run else "written:")
    for file in files:
        tensors = f"  {file.tensors} tensors" if file.tensors else ""
        print(f"  {plain(str(file.path))}  {bytes_text(file.nbytes)}{tensors}")
