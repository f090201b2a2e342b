"""The Python package: its sdist and its wheel, the same bytes from the same commit."""

import os
from pathlib import Path

from hack.publish.programs import ROOT, run

MEDIA_TYPES = {".whl": "application/vnd.pypi.wheel", ".gz": "application/vnd.pypi.sdist"}
KIND = "application/vnd.trainyard.python"


def build(source: Path, out: Path, epoch: int) -> list[Path]:
    """Build sdist and wheel of a source tree, with the builder that images/build-wheel.txt pins; times are `epoch`.

    The wheel is made from the sdist, and holds the compiled JPEG decoder. Raises PublishError.
    """
    uv = run(ROOT / "hack" / "bootstrap", "--uv").decode().strip()
    pins = ("--build-constraints", source / "images" / "build-wheel.txt", "--require-hashes")
    env = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "TRAINYARD_NATIVE": "required"}
    run(uv, "build", "-q", *pins, "--out-dir", out, source, env=env)
    return sorted(path for path in out.iterdir() if path.suffix in MEDIA_TYPES)
