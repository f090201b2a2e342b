"""Draw the documents' figures: `python -m hack.figures docs`; with --check, fail where a file is not current."""

import sys
from pathlib import Path

from hack.figures.pictures import FIGURES


def main(arguments: list[str]) -> int:
    """Write the figures into a folder, or compare them with its files."""
    check = "--check" in arguments
    folder = Path(next((one for one in arguments if not one.startswith("-")), "docs"))
    stale = []
    for name, draw in FIGURES.items():
        path, text = folder / f"{name}.svg", draw().svg()
        if check and (not path.exists() or path.read_text() != text):
            stale.append(str(path))
        elif not check:
            path.write_text(text)
    if stale:
        print(f"not current: {', '.join(stale)}; run python -m hack.figures {folder}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
