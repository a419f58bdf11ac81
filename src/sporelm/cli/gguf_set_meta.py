"""`spore gguf set-meta`: change the metadata of a model file."""

import argparse
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.tools.set_meta import Assignment, JsonAssignment

MAX_TEXT_BYTES = 64 << 20  # the limit for strings in GGUF files


def make_parser() -> Parser:
    parser = Parser(
        "gguf set-meta",
        "Change the metadata of a GGUF file. The kind of a value is u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str, or "
        "[kind] for an array, whose elements are separated by commas or given as a JSON array. Without a kind a key "
        "keeps its kind, and that of a new key follows from its value. Keys needed for loading are changed only with "
        "--force. The file is written under a temporary name and then renamed.",
        "FILE [KEY[:KIND]=VALUE ...] [options]",
        [
            "spore gguf set-meta model.gguf general.name='My model' llama.context_length=8192 --in-place",
            "spore gguf set-meta model.gguf general.tags:[str]=chat,small mine.layers:[u32]=1,2,3 -o new.gguf",
            "spore gguf set-meta model.gguf --file tokenizer.chat_template=template.jinja --in-place",
            "spore gguf set-meta model.gguf --delete 'general.url' --delete 'quantize.imatrix.*' -o new.gguf",
            "spore gguf set-meta model.gguf --metadata keys.json -o new.gguf",
            "spore gguf set-meta model.gguf general.name=Tiny --no-data -o header.gguf",
        ],
    )
    parser.takes_options_between = True
    parser.add_argument("file", metavar="FILE", help=gguf_inputs.GGUF_FILE_HELP)
    parser.add_argument("values", nargs="*", metavar="KEY=VALUE", help="values to set, as KEY=VALUE or KEY:KIND=VALUE")
    parser.add_argument(
        "--file", action="append", default=[], dest="texts", metavar="KEY=PATH",
        help="set a text to the contents of a file; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--metadata", metavar="FILE",
        help="set many keys from a JSON object of KEY: VALUE or KEY: {\"type\": KIND, \"value\": VALUE}; arguments "
        "KEY=VALUE and --file override it",
    )  # fmt: skip
    parser.add_argument(
        "--delete", action="append", default=[], metavar="GLOB", help="delete matching keys; may be repeated"
    )
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="replace FILE; of a split model only its first file, which has the metadata",
    )
    gguf_output.add_no_data(parser)
    gguf_output.add_output(parser, "a file or a folder; a split model becomes one file")
    return parser


def run(args: argparse.Namespace) -> None:
    from pathlib import Path

    from sporelm.errors import RequestError, UsageError
    from sporelm.files.text_file import read_text_file
    from sporelm.tools import set_meta
    from sporelm.tools.lazy_model import open_lazy_model
    from sporelm.tools.merge_splits import find_split_model
    from sporelm.tools.metadata_json import parse_metadata
    from sporelm.tools.output_file import OutputFile
    from sporelm.tools.split_model import strip_split_suffix

    if bool(args.output) == args.in_place:
        raise UsageError("give either -o OUT for a new file or --in-place to replace the old one")
    if args.in_place and args.no_data:
        raise UsageError("--no-data would delete the tensor data of FILE. Write another file with -o instead")
    assignments: list[Assignment | JsonAssignment] = []
    if args.metadata is not None:
        text = read_text_file(Path(args.metadata).expanduser(), "the metadata", MAX_TEXT_BYTES)
        assignments += parse_metadata(text, args.metadata)
    assignments += [set_meta.parse_assignment(word) for word in args.values]
    assignments += [read_assignment(word) for word in args.texts]
    if not assignments and not args.delete and args.metadata is None and not args.no_data:
        raise UsageError("there is nothing to change: give KEY=VALUE, --metadata, --file or --delete")
    path = find_split_model([args.file])
    model = open_lazy_model(path, alone=args.in_place)
    changed = set_meta.set_meta(model, assignments, args.delete, force=args.force)
    changes = set_meta.describe_changes(model.metadata, changed.metadata)
    if args.in_place:
        if not args.force and not path.stat().st_mode & 0o222:
            raise RequestError(f"{path} is read-only; --force replaces it anyway, -o writes another file")
        args.force = True
        place = path
    else:
        place = gguf_output.output_path(path, args.output, f"{strip_split_suffix(path)}.gguf")
    gguf_output.save([OutputFile(place, changed)], args, changes=changes)
    if not args.json:
        for key, change in changes.items():
            print(f"{change} {escape_line(key)}")


def read_assignment(word: str) -> "Assignment":
    """Parse KEY=PATH and read the file's text. Raises UsageError, or RequestError for the file."""
    from pathlib import Path

    from sporelm.errors import UsageError
    from sporelm.files.text_file import read_text_file
    from sporelm.tools.set_meta import Assignment

    key, sign, name = word.partition("=")
    if not key or not sign or not name:
        raise UsageError(f"{word[:80]!r} is not KEY=PATH")
    return Assignment(key, "str", read_text_file(Path(name).expanduser(), "the value", MAX_TEXT_BYTES))
