"""The model card: README.md beside published weights, for people who were not there when the model was trained."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from trainyard.models.described import Description
from trainyard.telemetry.metrics import FEW

MOST_NAMED = 20  # classes


def provenance(summary: Mapping[str, Any]) -> str:
    """One line that says what trained the published weights."""
    identity, versions = summary["identity"], summary["versions"]
    return (
        f"{summary['model']}, {identity['model.num_classes']} classes, trained by trainyard {versions['trainyard']} "
        f"(torch {versions['torch']}): {summary['steps']} steps of {identity['batch.global']}, "
        f"seed {identity['seed']}, top1 {summary['top1']:.2f} %"
    )


def card(found: Description, summary: Mapping[str, Any]) -> str:
    """Return the text of README.md, without exports."""
    run = str(summary["config"]["run"]["name"] or summary["config"]["run"]["dir"]).rstrip("/").rpartition("/")[2]
    head: dict[str, Any] = {"pipeline_tag": "image-classification", "tags": ["image-classification", "trainyard"]}
    if found.timm_name:
        head = {"library_name": "timm", **head}
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n# {run}\n\n{_wrapped(provenance(summary) + '.')}\n",
        f"## Results\n\n{_table(_results(summary))}",
        f"## Use\n\n{_use(found)}",
        f"## Images and classes\n\n{_table(_images(found))}\n{_wrapped(_classes(found))}\n",
        f"## Files\n\n{_FILES}",
        f"## Training\n\n{_table(_training(summary))}\nAll settings:\n\n```yaml\n{_settings(summary)}```\n",
    ]
    return "\n".join(parts)


def _results(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    many = summary["identity"]["model.num_classes"] > FEW
    return [
        ("top-1", f"{summary['top1']:.2f} %"),
        *([("top-5", f"{summary['top5']:.2f} %")] if many else []),
        ("validation samples, each measured once", f"{summary['validation_samples']:,}"),
    ]


def _use(found: Description) -> str:
    ours = "```bash\ntrainyard predict --model . --data PICTURES\n```\n"
    if found.timm_name:
        return (
            '```python\nimport timm\n\nmodel = timm.create_model("local-dir:PATH_OF_THIS_FOLDER", pretrained=True)'
            ".eval()\ntransform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))\n```\n\n"
            f"or, with the pixels that training validated with:\n\n{ours}"
        )
    kind, _, name = found.model.rpartition(":")
    blurred = f'blur_pooling(model, "{found.blur_pool}")\n' if found.blur_pool != "none" else ""
    imported = "from trainyard.models.blur import blur_pooling\n" if blurred else ""
    load = 'model.load_state_dict(torch.load("model.pth", weights_only=True))'
    if kind in ("", "torchvision"):
        sized = f", image_size={found.built_for}" if name.startswith("vit_") else ""
        create = (
            f"import torch\nimport torchvision\n\nmodel = torchvision.models.get_model("
            f'"{name}", num_classes={len(found.names)}{sized})'
        )
    else:
        create = (
            f"import torch\nfrom {kind} import {name.partition('.')[0]}\n\nmodel = {name}(num_classes="
            f"{len(found.names)})  # your own code"
        )
    lacks = "that blurs as this one does" if blurred else "with these parameter names"
    plainly = (
        f"timm has no model {lacks}, so `timm.create_model` cannot load this folder; `config.json` "
        "describes it for trainyard alone."
    )
    return f"```python\n{imported}{create}\n{blurred}{load}\nmodel.eval()\n```\n\n{_wrapped(plainly)}\n\n{ours}"


def _images(found: Description) -> list[tuple[str, Any]]:
    return [
        ("size", f"{found.size} x {found.size} pixels, RGB"),
        ("resized to", f"a shorter side of {found.resize} pixels, {found.interpolation}; then the centre is cut out"),
        ("mean, subtracted (images are 0 to 1)", ", ".join(f"{value:g}" for value in found.mean)),
        ("standard deviation, divided by", ", ".join(f"{value:g}" for value in found.std)),
    ]


def _classes(found: Description) -> str:
    shown = ", ".join(found.names[:MOST_NAMED])
    more = f" and {len(found.names) - MOST_NAMED} more (config.json has them all)"
    return f"{len(found.names)} classes: {shown}{more if len(found.names) > MOST_NAMED else ''}."


def with_export(text: str, found: Description, name: str, difference: float) -> str:
    """Return a card that also lists an exported file, with its largest difference from the model's outputs.

    An earlier entry of the same file is replaced; a card without our list of files stays as it is.
    """
    shape = f"normalised images, float32 (N, 3, {found.size}, {found.size}), to logits (N, {len(found.names)})"
    entry = _item(
        f"`{name}`: {_EXPORTS[name]}; {shape}. Its outputs were compared with the model's before it was published: the "
        f"largest difference was {difference:.2g}."
    )
    without = re.sub(rf"^- `{re.escape(name)}`: .*\n(?:  .*\n)*", "", text, flags=re.M)
    return without.replace(_SUMS, entry + _SUMS)


def _item(line: str) -> str:
    return textwrap.fill(line, 120, initial_indent="- ", subsequent_indent="  ") + "\n"


_EXPORTS = {"model.pt2": "`torch.export.load` reads it", "model.onnx": "in ONNX, weights included"}
_SUMS = _item("`SHA256SUMS`: hashes of all of them; `sha256sum -c SHA256SUMS` compares.")
_FILES = (
    _item("`model.safetensors`, `model.pth`: the weights, a state dict under the plain model's own names.")
    + _item("`config.json`: architecture, classes, and how images are prepared, in the form of timm's model hubs.")
    + _SUMS
)


def _training(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    config, seconds = summary["config"], summary["seconds"]
    devices = sorted({str(rank.get("gpu") or rank["device"].partition(":")[0]) for rank in summary["ranks"]})
    finished = datetime.fromtimestamp(summary["finished_at"], UTC)
    return [
        ("data", config["data"]["dataset"] or config["data"]["dir"]),
        ("training samples", f"{summary['identity']['data.samples']:,}"),
        ("length", f"{summary['steps']:,} steps of {summary['identity']['batch.global']} samples"),
        ("processes", f"{summary['world_size']} ({summary['strategy']}), {', '.join(devices)}"),
        ("precision", summary["precision"]),
        ("wall time, all starts", str(timedelta(seconds=round(sum(seconds.values()))))),
        ("images per second", f"{summary['images_per_second']:,.1f}"),
        ("energy", _energy(summary["joules"])),
        ("finished", f"{finished:%Y-%m-%d %H:%M} UTC"),
        *((f"version of {name}", version) for name, version in summary["versions"].items()),
    ]


def _energy(joules: Mapping[str, float]) -> str:
    whats = {"gpus": "of the GPUs' boards", "processors": "of the nodes' CPUs, all that ran there included"}
    found = [f"{joules[kind] / 3.6e6:.3g} kWh {what}" for kind, what in whats.items() if kind in joules]
    return ", ".join(found) or "not measured"


def _settings(summary: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(summary["config"], sort_keys=False)
    return text


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    cells = "".join(f"| {name} | {str(value).replace('|', '&#124;')} |\n" for name, value in rows)
    return f"| | |\n| --- | --- |\n{cells}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
