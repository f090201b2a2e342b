"""The page of results: what ran, on what, when, and every row; in Markdown, for docs/gpu.md."""

import datetime
from pathlib import Path
from typing import Any


def write(path: Path, about: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """Write the page of the parts that have run so far."""
    path.write_text(render(about, parts, datetime.date.today()))


def render(about: dict[str, Any], parts: list[dict[str, Any]], day: datetime.date) -> str:
    """Build the page."""
    lines = [heading(about, day), ""]
    if about.get("device") != "cuda":
        lines += ["No GPU: parts ran on a processor in tiny sizes, which shows that their code runs. "
                  "Figures mean nothing.", ""]  # fmt: skip
    lines += ["| part | state | seconds |", "| --- | --- | --- |"]
    lines += [f"| {cell(part['title'])} | {cell(part['state'])} | {part['seconds']:.0f} |" for part in parts]
    for part in parts:
        lines += ["", f"### {part['title']}", ""]
        if part["rows"]:
            lines += ["| what | state | result |", "| --- | --- | --- |"]
            lines += [f"| {cell(row['name'])} | {cell(row['state'])} | {cell(row['text'])} |" for row in part["rows"]]
        else:
            lines.append("No results.")
        if part.get("output"):
            lines += ["", "The end of its output:", "", "```text", *part["output"][-15:], "```"]
    return "\n".join(lines) + "\n"


def heading(about: dict[str, Any], day: datetime.date) -> str:
    """One sentence on machine and versions."""
    versions = ", ".join(f"{name} {number}" for name, number in about.get("versions", {}).items())
    gpu = about.get("gpu") or "no GPU"
    if about.get("gpu"):
        gpu += f" ({about['gpu_memory_gib']} GiB, CUDA {about['cuda']}, cuDNN {about['cudnn']}, NCCL {about['nccl']})"
    return (
        f"{day.isoformat()}: {gpu}; {about.get('cores', '?')} cores, {about.get('memory_gib', '?')} GiB; Python "
        f"{about.get('python', '?')}, {versions}; pictures decoded by {about.get('decoder', '?')}."
    )


def cell(text: Any) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")
