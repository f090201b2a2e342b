#!/usr/bin/env python3
"""Makes the demo's archive: real images as JPEG in the layout of Kaggle's ImageNet zip.

scripts/demo/make_archive.py OUT.zip
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trainyard.core.exits import UserError, guarded
from trainyard.prepare.sample import make_archive


def main() -> int:
    """Write the archive to the path that was given."""
    if len(sys.argv) != 2:
        raise UserError("name the file to write: scripts/demo/make_archive.py OUT.zip")
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    make_archive(out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    guarded(main)
