"""Fill build/gpu-wheels with what the trainers need and a machine with torch, torchvision and timm may lack.

    python -m benchmarks.gpu.wheels [FOLDER]

Versions and hashes are those of uv.lock; wheels are for CPython 3.12 on Linux with glibc 2.28 or later. Each is
unpacked into a folder of its own, so that `make gpu` adds to PYTHONPATH only what is missing and needs no installer.
The compiled JPEG decoder lies beside them, for machines without a compiler or libjpeg's headers.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu-wheels"
MOST = 60_000_000  # bytes
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_28"
# Services that no part uses, and what torchvision brings
LEFT_OUT = ("kaggle", "mlflow-skinny", "tensorboardx", "wandb", "numpy", "pillow")


def main() -> int:
    """Fill the folder; 1 if it would be too large."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    uv = subprocess.run([ROOT / "hack" / "bootstrap", "--uv"], check=True, text=True, stdout=subprocess.PIPE)
    with tempfile.TemporaryDirectory(dir=folder.parent if folder.parent.is_dir() else None) as name:
        new = Path(name) / "new"
        unpack(uv.stdout.strip(), exported(uv.stdout.strip()), Path(name) / "all")
        new.mkdir()
        separate(Path(name) / "all", new)
        carry_decoder(new / "native")
        size = bytes_in(new)
        if size > MOST:
            print(f"{size / 1e6:.1f} MB, more than {MOST / 1e6:.0f} MB: leave more out (LEFT_OUT)", file=sys.stderr)
            return 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(new, folder)
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    print(f"{folder}: {size / 1e6:.1f} MB: {names}")
    return 0


def exported(uv: str) -> str:
    """Return the requirements of the trainers with hashes, as uv.lock has them."""
    command = [uv, "export", "-q", "--frozen", "--no-dev", "--no-emit-project", "--no-annotate", "--no-header"]
    command += [word for name in LEFT_OUT for word in ("--prune", name)]
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def unpack(uv: str, requirements: str, folder: Path) -> None:
    """Unpack the wheels of requirements into one folder, those that their markers exclude from that Python left out."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [uv, "pip", "install", "-q", "--target", str(folder), "--no-deps", "--require-hashes",
                   "--only-binary", ":all:", "--python-version", PYTHON, "--python-platform", PLATFORM,
                   "--link-mode", "copy", "-r", file.name]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)


def separate(folder: Path, out: Path) -> None:
    """Move each package below a folder to a folder of its own, by the list of files that a wheel brings (RECORD)."""
    for info in sorted(folder.glob("*.dist-info")):
        own = out / info.name.partition("-")[0]
        own.mkdir()
        with (info / "RECORD").open(newline="") as record:
            names = {Path(row[0]).parts[0] for row in csv.reader(record) if row}
        for name in sorted(names - {"..", "bin"}):
            shutil.move(folder / name, own / name)


def carry_decoder(folder: Path) -> None:
    """Copy this checkout's compiled decoder, under the name by which a checkout's cache has it."""
    from trainyard import native

    path = native.cached_path()
    if path.is_file():
        folder.mkdir(parents=True)
        shutil.copy(path, folder / path.name)
    else:
        print("no compiled decoder here: that machine compiles it, or decodes with torchvision", file=sys.stderr)


def bytes_in(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
