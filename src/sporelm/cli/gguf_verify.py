"""`spore gguf verify`: check model files and list all findings."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.verify import VerifyReport

STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def make_parser() -> Parser:
    parser = Parser(
        "gguf verify",
        "Check model files: structure, alignment, overlaps, gaps and sizes, metadata and tokenizer, missing and "
        "unexpected tensors, NaN and infinity in values and scales, hashes. All findings are listed. Exit code 1 if "
        "one is an error.",
        "FILE... [options]",
        [
            "spore gguf verify model.gguf",
            "spore gguf verify 'models/*.gguf' --no-values --json",
            "spore gguf verify model.gguf --hashes > model.sha256",
            "spore gguf verify model.gguf --check model.sha256",
        ],
    )
    gguf_inputs.add_files(parser)
    parser.add_argument(
        "--values", action=argparse.BooleanOptionalAction, default=True,
        help="read all values to find NaN and infinity; default: yes",
    )  # fmt: skip
    parser.add_argument(
        "--hashes", action="store_true", help="print the SHA-256 of files and tensors as a list for --check; "
        "findings go to stderr",
    )  # fmt: skip
    parser.add_argument(
        "--check", metavar="LIST", help="compare with a list of hashes, also one of sha256sum or llama.cpp's gguf-hash"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")
    options.add_json(parser, "print a JSON array with an object for each model")
    gguf_inputs.add_color(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.tools.diagnostics import ERROR, WARNING
    from sporelm.tools.hashes import format_hash_list, read_hash_list
    from sporelm.tools.verify import verify_model

    page = Page(args.color)
    reports = []
    wanted = read_hash_list(Path(args.check)) if args.check else None

    def check(path: Path) -> bool:
        with ProgressLine() as progress:
            report = verify_model(path, values=args.values, hashes=args.hashes, wanted=wanted, progress=progress)
        if args.json:
            reports.append(report.as_json())
        elif args.hashes:
            for finding in report.findings:
                gguf_inputs.print_problem(f"{path.name}: {finding.level}: {finding.where} {finding.message}")
            print("\n".join(format_hash_list(report.hashes)))
        else:
            print_report(page, report)
        return not report.count(ERROR) and not (args.strict and report.count(WARNING))

    code = gguf_inputs.process_each(args.files, check)
    if args.json:
        gguf_inputs.print_json(reports)
    return code


def print_report(page: "Page", report: "VerifyReport") -> None:
    """Print the verdict, and each finding on a line."""
    from sporelm.tools.diagnostics import ERROR, WARNING

    errors, warnings = report.count(ERROR), report.count(WARNING)
    verdict = page.paint("damaged" if errors else "ok", "red" if errors else "green")
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}" for count, name in ((errors, ERROR), (warnings, WARNING)) if count
    ]
    page.line(f"{escape_line(report.path.name)}: {verdict} ({', '.join([f'{report.tensors} tensors', *counts])})")
    for finding in report.findings:
        where = f" {escape_line(finding.where)}" if finding.where else ""
        level = page.paint(f"{finding.level:<7}", STYLES[finding.level])
        page.line(f"  {level} {finding.check}{where}: {escape_line(finding.message)}")
