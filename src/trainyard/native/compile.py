"""Compiles the decoder. Run by the wheel's build hook, and by `hack/bootstrap python` for a checkout.

    python trainyard/native/compile.py OUT.so

libjpeg-turbo is linked statically and its names are hidden: nothing needs to be installed where the result runs, and
the libjpeg that torchvision or Pillow bring is another one. Where there is no static library, the shared one is taken.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = [str(path) for path in sorted(Path(__file__).parent.glob("*.c"))]
# -ffp-contract=off: the filter's weights are the same with and without fused multiply-add
FLAGS = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fPIC", "-shared"]
LINK = ["-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,-z,defs"]


def compile_library(out: Path) -> str:
    """Compile to `out`, which appears only when it is whole. Empty if that worked, else why not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    why = ""
    for libraries in (["-l:libjpeg.a"], ["-ljpeg"]):
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            new = Path(folder) / "new.so"
            command = [os.environ.get("CC", "gcc"), *FLAGS, *SOURCES, "-o", str(new), *libraries, *LINK]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                return f"{command[0]} cannot be run ({error.strerror})"
            if done.returncode == 0:
                new.replace(out)
                return ""
            why = done.stderr.strip()
    return why


def main() -> int:
    """Compile, or say on stderr why that did not work."""
    why = compile_library(Path(sys.argv[1]))
    if why:
        print(f"the JPEG decoder was not built; needed are gcc and libjpeg-turbo's headers:\n{why}", file=sys.stderr)
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
