"""The pages of docs/ that are generated: `python -m sporelm.cli.pages FOLDER` (`./run docs`) writes them."""

import sys
from pathlib import Path

from sporelm import settings
from sporelm.cli import main

COMMANDS_HEAD = """\
# Commands

This page is written by `./run docs` from the commands' own help; a test compares the two.

Exit codes: 0 done, 1 failed with a one-line reason on stderr (`--debug` adds the traceback), 2 wrong usage,
130 stopped by Ctrl-C, 143 and 129 by SIGTERM and SIGHUP. Results go to stdout; progress, figures and reasons to stderr.
If a standard stream is closed (`<&-`, `>&-`, `2>&-`): reading a closed input is an error, a closed output is an error
at the start (except for `serve`, which prints nothing there), and messages for a closed stderr are dropped.

[Sampling](sampling.md) says how a token is chosen, and in which order; [structured output](structured-output.md) what
form an answer can have.
"""

SETTINGS_HEAD = """\
# Settings

This page is written by `./run docs` from `sporelm/settings.py`, the only file that reads the environment. A setting
is read when it is first needed and does not change afterwards; an empty value counts as unset.
"""


def commands_page() -> str:
    """docs/commands.md."""
    parts = [COMMANDS_HEAD, f"```\n{main.overview()}```\n"]
    for name in main.COMMANDS:
        parts.append(f"## spore {name}\n\n```\n{main.load(name).parser().format_help()}```\n")
    return "\n".join(parts)


def settings_page() -> str:
    """docs/settings.md."""
    return "\n".join([SETTINGS_HEAD, *(f"### {setting.name}\n\n{setting.doc}\n" for setting in settings.ALL)])


def write(folder: Path) -> None:
    """Write both pages into a folder."""
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8", newline="\n")
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
