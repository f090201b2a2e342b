"""The command line that the commands share: layout of help, printing of errors, and exit codes."""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable

from trainyard.cluster.errors import KubeError
from trainyard.core.exits import Exit, printable

# What every command may end with; a command's own meanings of 0 and 1 come before these
EVERY = {
    2: "the command line or a file is wrong, or the cluster cannot be read",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}


class WrongInputError(Exception):
    """The command line or a file is wrong; the message reports the flag or file, and the remedy."""


def command(name: str, about: str, examples: str, codes: dict[int, str], more: str = "") -> argparse.ArgumentParser:
    """Return the parser of `trainyard NAME`, whose help ends with examples and exit codes.

    `about` is one sentence, `more` further ones; `examples` are lines of the shell.
    """
    lines = [f"  {code:<5}{meaning}" for code, meaning in sorted((codes | EVERY).items())]
    shown = textwrap.indent(textwrap.dedent(examples).strip(), "  ")
    return argparse.ArgumentParser(
        prog=f"trainyard {name}",
        description="\n\n".join(filter(None, (about, more))),
        epilog="\n".join(["examples:", shown, "", "exit codes:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_namespace(parser: argparse._ActionsContainer) -> None:
    """Give a command, or a group of its options, the option -n."""
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the release (default: default)")


def run_command(name: str, function: Callable[[], int], interrupted: str = "stopped") -> int:
    """Return what a command's function returns; print an error in one line instead, and return its exit code."""
    try:
        return function()
    except (KubeError, WrongInputError) as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return 2
    except (KeyboardInterrupt, EOFError):  # Ctrl-C, and Ctrl-D in answer to a question
        print(f"\n{name}: {interrupted}", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:  # who reads the pipe has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
