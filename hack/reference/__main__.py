"""Write docs/reference and the remedies of docs/troubleshooting.md: `python -m hack.reference`.

With --check, fail where a page is not current.
"""

import sys
from pathlib import Path

from hack.reference import commands, exit_codes, settings, troubleshooting, values

ROOT = Path(__file__).parents[2]
PAGES = {
    "reference/trainer-settings": settings.trainer,
    "reference/prepare-settings": settings.prepare,
    "reference/values": values.write,
    "reference/exit-codes": exit_codes.write,
    "reference/commands": commands.write,
    "troubleshooting": troubleshooting.write,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with the files."""
    check, stale = "--check" in arguments, []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / f"{name}.md", make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"{'not current' if check else 'written'}: {', '.join(stale)}", file=sys.stderr)
    if check and stale:
        print("run python -m hack.reference and commit what it writes", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
