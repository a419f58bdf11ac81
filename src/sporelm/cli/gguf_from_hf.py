"""`spore gguf from-hf`: a Hugging Face folder as a GGUF file."""

import argparse

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def parser() -> Parser:
    made = Parser(
        "gguf from-hf",
        "Write a Hugging Face folder (config.json, safetensors, tokenizer) as a GGUF file that llama.cpp loads too: "
        "metadata under its keys, its names and order of weights, the tokenizer, chat templates. What a GGUF file "
        "cannot say is told on stderr, or refused. Everything streams.",
        "FOLDER [options]",
        [
            "spore gguf from-hf ./SmolLM2-135M-Instruct",
            "spore gguf from-hf ./Llama-3.2-1B --type q8_0 -o llama.gguf",
            "spore gguf from-hf ./my-model --pre qwen2 --json",
            "spore gguf from-hf ./my-model --vocab-only -o vocab.gguf",
        ],
    )
    made.add_argument("folder", metavar="FOLDER", help="a Hugging Face folder, or a stored name")
    made.add_argument(
        "--type", default="auto", metavar="TYPE",
        help="of the matrices: auto (floats as they are), f32, f16, bf16 or q8_0; vectors are f32; default: auto",
    )  # fmt: skip
    made.add_argument(
        "--pre", metavar="NAME",
        help="how the tokenizer cuts text (tokenizer.ggml.pre), where it is not recognised; you vouch for it",
    )  # fmt: skip
    made.add_argument("--vocab-only", action="store_true", help="write the tokenizer alone")
    gguf_output.add_threads(made)
    gguf_output.add_output(
        made, "a file, or a folder for NAME-TYPE.gguf in it; default: beside FOLDER; if stored, the current folder"
    )
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.gguf_inputs import complain, one_model
    from sporelm.tools.hf.from_hf import from_hf
    from sporelm.tools.output import Output

    folder = one_model(args.folder)
    found = from_hf(folder, type_name=args.type, pre=args.pre, vocab_only=args.vocab_only)
    kind = "vocab" if args.vocab_only else _type_of(found.model)
    path = gguf_output.place(folder.resolve(), args.output, f"{folder.resolve().name}-{kind}.gguf")
    gguf_output.save([Output(path, found.model)], args, notes=list(found.notes))
    for note in found.notes:
        complain(f"note: {note}")


def _type_of(model: object) -> str:
    """The type in the name of the file."""
    from sporelm.tools.file_types import FILE_TYPES
    from sporelm.tools.lazy import Model

    assert isinstance(model, Model)
    return FILE_TYPES.get(model.value("general.file_type"), "mixed")
