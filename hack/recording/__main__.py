"""Run a command on a terminal and draw what it prints as an SVG: `python -m hack.recording OUT.svg COMMAND...`.

The terminal is a pseudo-terminal of WIDTH columns. What the command writes is drawn as it came; of many lines those in
the middle are left out, and the image says how many. `hack/recording/record` makes the images of README.
"""

import fcntl
import inspect
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 104, 40
HEAD, TAIL = 9, 7
FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}", re.S)  # rich's fonts come from a server
RICH_FORMAT = inspect.signature(Console.export_svg).parameters["code_format"].default
FORMAT = FONT_FACE.sub("", RICH_FORMAT).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def run(command: list[str]) -> str:
    """Run a command on a pseudo-terminal and return what it wrote; raises CalledProcessError where it failed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    written = bytearray()
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        while chunk := read(ours):
            written += chunk
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode()


def read(terminal: int) -> bytes:
    """Return what is written next; nothing once the last writer has closed its side (to Linux an error)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def shown(written: str) -> list[str]:
    """Return the lines that stay on the screen: a carriage return writes a line anew."""
    lines = written.replace("\r\n", "\n").rstrip("\n").split("\n")
    lines = [line.rpartition("\r")[2] for line in lines]
    if len(lines) <= HEAD + TAIL:
        return lines
    left_out = len(lines) - HEAD - TAIL
    return [*lines[:HEAD], f"\x1b[2m... {left_out} lines ...\x1b[0m", *lines[-TAIL:]]


def draw(command: str, lines: list[str]) -> str:
    """Return the SVG of a terminal in which a command was typed and these lines came."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in lines:
        console.print(Text.from_ansi(line))
    return console.export_svg(title=command, code_format=FORMAT, unique_id="terminal")


def main(arguments: list[str]) -> int:
    """Run and draw."""
    out, *command = arguments
    Path(out).write_text(draw(" ".join(command), shown(run(command))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
