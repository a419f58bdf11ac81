"""`spore gguf set-meta`: change the metadata of a model file."""

import argparse
from typing import TYPE_CHECKING

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.tools.set_meta import Assignment

LONGEST_FILE = 64 << 20  # bytes, as for every string of a GGUF file


def parser() -> Parser:
    made = Parser(
        "gguf set-meta",
        "Change the metadata of a GGUF file. A value's kind is u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str, or "
        "[kind] for an array, whose elements stand between commas or as a JSON array. Without a kind a key keeps the "
        "one it has; a new key's follows from its value. Keys that loading needs are changed with --force only. The "
        "file is written beside its place and then renamed.",
        "FILE [KEY[:KIND]=VALUE ...] [options]",
        [
            "spore gguf set-meta model.gguf general.name='My model' llama.context_length=8192 --in-place",
            "spore gguf set-meta model.gguf general.tags:[str]=chat,small mine.layers:[u32]=1,2,3 -o new.gguf",
            "spore gguf set-meta model.gguf --file tokenizer.chat_template=template.jinja --in-place",
            "spore gguf set-meta model.gguf --delete 'general.url' --delete 'quantize.imatrix.*' -o new.gguf",
        ],
    )
    made.add_argument("file", metavar="FILE", help="a .gguf file, the first file of a split model, or a stored name")
    made.add_argument("values", nargs="*", metavar="KEY=VALUE", help="values to set, as KEY=VALUE or KEY:KIND=VALUE")
    made.add_argument(
        "--file", action="append", default=[], dest="texts", metavar="KEY=PATH",
        help="set a text to what a file holds; may be repeated",
    )  # fmt: skip
    made.add_argument(
        "--delete", action="append", default=[], metavar="GLOB", help="take the keys away that fit; may be repeated"
    )
    made.add_argument(
        "--in-place", action="store_true", help="replace FILE; of a split model its first file, which has the metadata"
    )
    gguf_output.add_output(made, "a file or a folder; a split model becomes one file")
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.errors import RequestError, UsageError
    from sporelm.tools import set_meta
    from sporelm.tools.lazy import open_model
    from sporelm.tools.merge import find_split
    from sporelm.tools.output import Output
    from sporelm.tools.split import stem_of

    if bool(args.output) == args.in_place:
        raise UsageError("give either -o OUT for a new file or --in-place to replace the old one")
    assignments = [set_meta.parse_assignment(word) for word in args.values] + [text_of(word) for word in args.texts]
    if not assignments and not args.delete:
        raise UsageError("there is nothing to change: give KEY=VALUE, --file or --delete")
    path = find_split([args.file])
    model = open_model(path, alone=args.in_place)
    changed = set_meta.set_meta(model, assignments, args.delete, force=args.force)
    what = set_meta.changes(model.metadata, changed.metadata)
    if args.in_place:
        if not args.force and not path.stat().st_mode & 0o222:
            raise RequestError(f"{path} is read-only; --force replaces it all the same, -o writes another file")
        args.force, place = True, path
    else:
        place = gguf_output.place(path, args.output, f"{stem_of(path)}.gguf")
    gguf_output.save([Output(place, changed)], args, changes=what)
    if not args.json:
        from sporelm.cli.gguf_text import plain

        for key, change in what.items():
            print(f"{change} {plain(key)}")


def text_of(word: str) -> "Assignment":
    """KEY=PATH as the assignment of the file's text. Raises UsageError, or RequestError for the file."""
    from pathlib import Path

    from sporelm.errors import UsageError
    from sporelm.tools.set_meta import Assignment
    from sporelm.weights.text_file import read_text_file

    key, sign, name = word.partition("=")
    if not key or not sign or not name:
        raise UsageError(f"{word[:80]!r} is no KEY=PATH")
    return Assignment(key, "str", read_text_file(Path(name).expanduser(), "the value", LONGEST_FILE))
