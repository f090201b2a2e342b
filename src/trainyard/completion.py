"""Completion for shells: `trainyard completion bash` prints a script that knows every command and its options.

A command's options are those that its `--help` names, read once, when the script is made.
"""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Mapping
from unittest import mock

OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*(?![\w-])")


def options_of(words: str, main: Callable[[], object]) -> list[str]:
    """Return the options that a command's help names, sorted; `words` is what a user types."""
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [words, "--help"]),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    listed = [line for line in out.getvalue().splitlines() if line.lstrip().startswith("-")]
    return sorted({"--help", *(name for line in listed for name in OPTION.findall(line.strip().partition("  ")[0]))})


def bash(commands: Mapping[str, list[str]]) -> str:
    """Return a script for bash; elsewhere than after a command's options it completes names of files."""
    cases = "\n".join(f"    {name}) words='{' '.join(options)}' ;;" for name, options in commands.items())
    return f"""_trainyard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(commands)} --help --version' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _trainyard trainyard
"""


def zsh(commands: Mapping[str, list[str]]) -> str:
    """Return a script for zsh, which takes bash's by its own bashcompinit."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: Mapping[str, list[str]], about: Mapping[str, str]) -> str:
    """Return a script for fish, with what each command is for."""
    lines = []
    for name, options in commands.items():
        quoted = about[name].replace("'", "\\'")
        lines.append(f"complete -c trainyard -n __fish_use_subcommand -f -a {name} -d '{quoted}'")
        for option in options:
            long = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"complete -c trainyard -n '__fish_seen_subcommand_from {name}' {long}")
    return "\n".join(lines) + "\n"
