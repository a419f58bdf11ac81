"""`spore gguf verify`: checks model files and lists everything that is wrong."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.verify import Report

STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def parser() -> Parser:
    made = Parser(
        "gguf verify",
        "Check model files: structure, alignment, overlaps, gaps and sizes, metadata and tokenizer, tensors that the "
        "architecture lacks or does not have, NaN and infinity in values and scales, hashes. All findings are listed. "
        "Exit code 1 where one is an error.",
        "FILE... [options]",
        [
            "spore gguf verify model.gguf",
            "spore gguf verify 'models/*.gguf' --no-values --json",
            "spore gguf verify model.gguf --hashes > model.sha256",
            "spore gguf verify model.gguf --check model.sha256",
        ],
    )
    gguf_inputs.add_files(made)
    made.add_argument(
        "--values", action=argparse.BooleanOptionalAction, default=True,
        help="read every value, to find NaN and infinity; default: yes",
    )  # fmt: skip
    made.add_argument(
        "--hashes", action="store_true", help="print SHA-256 of files and tensors, as a list that --check takes; "
        "findings go to stderr then",
    )  # fmt: skip
    made.add_argument(
        "--check", metavar="LIST", help="compare with a list of hashes, also of sha256sum or llama.cpp's gguf-hash"
    )
    made.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")
    made.add_argument("--json", action="store_true", help="print a JSON array with an object for each model")
    gguf_inputs.add_color(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools.findings import ERROR, WARNING
    from sporelm.tools.hashes import as_lines, read_list
    from sporelm.tools.verify import verify

    page, found = Page(args.color), []
    wanted = read_list(Path(args.check)) if args.check else None

    def check(path: Path) -> bool:
        with ProgressLine() as progress:
            report = verify(path, values=args.values, hashes=args.hashes, wanted=wanted, progress=progress)
        if args.json:
            found.append(report.as_json())
        elif args.hashes:
            for finding in report.findings:
                gguf_inputs.complain(f"{path.name}: {finding.level}: {finding.where} {finding.message}")
            print("\n".join(as_lines(report.hashes)))
        else:
            print_report(page, report)
        return not report.count(ERROR) and not (args.strict and report.count(WARNING))

    code = gguf_inputs.each_model(args.files, check)
    if args.json:
        gguf_inputs.print_json(found)
    return code


def print_report(page: "Page", report: "Report") -> None:
    """The verdict and each finding on a line."""
    from sporelm.cli.gguf_text import plain
    from sporelm.tools.findings import ERROR, WARNING

    errors, warnings = report.count(ERROR), report.count(WARNING)
    verdict = page.paint("damaged" if errors else "ok", "red" if errors else "green")
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}" for count, name in ((errors, ERROR), (warnings, WARNING)) if count
    ]
    page.line(f"{plain(report.path.name)}: {verdict} ({', '.join([f'{report.tensors} tensors', *counts])})")
    for finding in report.findings:
        where = f" {plain(finding.where)}" if finding.where else ""
        level = page.paint(f"{finding.level:<7}", STYLES[finding.level])
        page.line(f"  {level} {finding.check}{where}: {plain(finding.message)}")
