"""The command `trainyard predict`: the likeliest classes of each image, as CSV and as JSON lines."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.core.exits import Exit, UserError, printable
from trainyard.core.storage import storage
from trainyard.inference import command
from trainyard.inference.command import Done
from trainyard.inference.forward import list_failures


def main(argv: Sequence[str] | None = None) -> int:
    """Predict as the arguments say."""
    parser = command.parser(
        "trainyard predict",
        "Say what is on images: predictions.csv and predictions.jsonl have the likeliest classes of each. An image "
        "that cannot be decoded is named, and has an error in place of classes.",
        "predictions",
    )
    parser.add_argument("--top", type=int, default=5, metavar="K", help="classes per image (%(default)s)")
    options = parser.parse_args(argv)
    if options.top < 1:
        raise UserError(f"--top {options.top}: at least 1 class is predicted")
    strategy, done = command.go(options, "predict", options.top, lambda images, trained: None)
    failures, count = done.outcome.failures, done.images.count
    if len(failures) == count:
        lines = "\n".join(list_failures(failures, done.images.name))
        raise UserError(f"none of the {count} images can be decoded:\n{lines}")
    if strategy.is_rank0:
        write(options.out, done)
        for line in list_failures(failures, done.images.name):
            print(printable(f"predict: {line}"))
        left_out = f", {len(failures):,} could not be decoded" if failures else ""
        print(f"{count - len(failures):,} images{left_out}: {options.out / 'predictions.csv'}, predictions.jsonl")
    strategy.barrier()
    strategy.close()
    return Exit.DONE


def write(out: Path, done: Done) -> None:
    """Write predictions.csv and predictions.jsonl, a line per image in the order of their names or numbers."""
    top = done.outcome.guesses.shape[1]
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(
        ["name", *(f"{what}_{place + 1}" for place in range(top) for what in ("class", "probability")), "error"]
    )
    lines = []
    for sample in range(done.images.count):
        name, row = done.images.name(sample), of(done, sample)
        error = done.outcome.failures.get(sample, "")
        lines.append(json.dumps({"name": name, **({"error": error} if error else {"top": row})}) + "\n")
        cells = [cell for one in row for cell in (one["class"], one["probability"])] if not error else [""] * 2 * top
        writer.writerow([name, *cells, error])
    try:
        storage.make_folder(out)
        storage.write_file(out / "predictions.csv", table.getvalue().encode())
        storage.write_file(out / "predictions.jsonl", "".join(lines).encode())
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}; choose another folder") from error


def of(done: Done, sample: int) -> list[dict[str, Any]]:
    """Return the likeliest classes of an image: name, number, probability."""
    outcome, names = done.outcome, done.trained.found.names
    return [
        {"class": names[int(index)], "index": int(index), "probability": round(float(chance), 6)}
        for index, chance in zip(outcome.guesses[sample], outcome.chances[sample], strict=True)
    ]
