"""The command `trainyard export`: a trained model as ONNX or for `torch.export`, by the code that ends a run."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from trainyard.core.exits import Exit, UserError, printable
from trainyard.core.storage import storage
from trainyard.inference.command import ready_to_write
from trainyard.inference.model import Trained, open_trained, published_folder
from trainyard.models.described import as_json, rebuild
from trainyard.models.weights import FILE as CONFIG
from trainyard.models.weights import read_sums
from trainyard.run import export_formats
from trainyard.run.publishing import CARD, Published, add_exports


def main(argv: Sequence[str] | None = None) -> int:
    """Export as the arguments say."""
    options = parser().parse_args(argv)
    kinds = list(dict.fromkeys(options.to))
    for kind in kinds:
        if lacking := export_formats.packages_missing(kind):
            raise UserError(f"--to {kind} needs {' and '.join(lacking)}: pip install {' '.join(lacking)}")
    folder = published_folder(options.model)
    out = options.out or folder
    if out is None:
        raise UserError(f"--model {options.model} has no published/: name a folder for the files with --out")
    in_place = folder is not None and out.resolve() == folder.resolve()
    if not in_place and storage.list_folder(out):
        raise UserError(f"--out {out} is not empty: name a new folder, or leave --out out to add to published/")
    trained = open_trained(options.model)
    ready_to_write(out)
    model = rebuild(trained.found, trained.weights).float()
    print(f"export: {trained.found.model} of {trained.origin}", flush=True)
    place = Published(out, None, sums_of(out)) if in_place else new_folder(out, trained, model)
    card = storage.read_text(out / CARD) if CARD in place.sums else ""
    for name, difference in add_exports(kinds, model, trained.found, place, card, failure_message).items():
        size = (out / name).stat().st_size / 1e6
        line = f"{out / name}: {size:,.1f} MB; largest difference from the model's outputs {difference:.2g}"
        print(printable(f"export: {line}"), flush=True)
    return Exit.DONE


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard export`."""
    own = argparse.ArgumentParser(
        prog="trainyard export",
        description="Write a trained model as ONNX or for torch.export. Each file is loaded again and compared with "
        "the model. It is added to published/, with its line in the model card and its hash in SHA256SUMS; with --out "
        "it goes to a new folder, together with config.json.",
    )
    add = own.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="run directory, checkpoint's folder, or published/")
    add("--to", choices=tuple(export_formats.FILES), nargs="+", required=True,
        help=f"formats: {', '.join(f'{kind} ({name})' for kind, name in export_formats.FILES.items())}")  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="a new folder for the files; default: the model's published/")
    return own


def new_folder(out: Path, trained: Trained, model: nn.Module) -> Published:
    """Make a folder that describes a model; its weights are only in what is exported."""
    out.mkdir(parents=True, exist_ok=True)
    place = Published(out, None)
    place.write(CONFIG, (json.dumps(as_json(trained.found, model), indent=2) + "\n").encode())
    return place


def sums_of(folder: Path) -> dict[str, str]:
    """Return the hashes of a published folder; they are computed where it has no SHA256SUMS."""
    files = (path for path in storage.list_folder(folder) if path.is_file())
    return read_sums(folder) or {path.name: storage.hash_file(path) for path in files}


def failure_message(kind: str, reason: str) -> str:
    """Say that an export has failed."""
    return f"--to {kind}: {export_formats.FILES[kind]} was not written: {reason}. The model is as it was"
