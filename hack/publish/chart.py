"""The chart as it is published: a copy whose defaults name the images by digest, packed to the same bytes each time."""

import base64
import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from hack.publish import versions
from hack.publish.programs import ROOT, PublishError, run

HELM = ROOT / "build" / "bin" / "helm3"
FIRST = "trainyard/Chart.yaml"  # where Helm has it in a package, too


def repositories(chart: Path) -> dict[str, str]:
    """Return the parts of the chart that have an image, and its name under the registry."""
    found = {}
    for path in sorted(chart.glob("charts/*/values.yaml")):
        image = (yaml.safe_load(path.read_text()) or {}).get("image")
        if image:
            found[path.parent.name] = str(image["repository"])
    return found


def write(chart: Path, registry: str, digests: Mapping[str, str], facts: Mapping[str, str]) -> None:
    """Write the images' registry and digests into a copy of the chart, and what Artifact Hub shows of it.

    `digests` are those of the images by their repositories; `facts` has `version` and, where there is one, `source`.
    """
    _set(chart / "values.yaml", "global.image.registry", registry)
    for part, repository in repositories(chart).items():
        _set(chart / "charts" / part / "values.yaml", "image.digest", digests[repository])
    path = chart / "Chart.yaml"
    described = yaml.safe_load(path.read_text())
    images = [{"name": name, "image": f"{registry}/{name}@{which}"} for name, which in sorted(digests.items())]
    notes = {
        "artifacthub.io/images": yaml.safe_dump(images, sort_keys=False),
        "artifacthub.io/changes": yaml.safe_dump(_changes(facts["version"]), sort_keys=False, width=10_000),
        "artifacthub.io/prerelease": json.dumps("-" in facts["version"]),
    }
    icon = base64.b64encode((chart / "icon.svg").read_bytes()).decode()
    described["icon"] = f"data:image/svg+xml;base64,{icon}"
    if source := facts.get("source"):
        described |= {"home": source, "sources": [source]}
        notes["artifacthub.io/links"] = yaml.safe_dump([{"name": "source", "url": source}])
    described["annotations"] = described.get("annotations", {}) | notes
    path.write_text(yaml.safe_dump(described, sort_keys=False, width=10_000))


def _changes(version: str) -> list[dict[str, str]]:
    """Return what CHANGELOG.md says of a version, as Artifact Hub takes it."""
    found = [entry for entry in versions.changelog() if entry.version == version]
    kinds = [(kind.lower(), texts) for entry in found for kind, texts in entry.changes.items()]
    return [{"kind": kind, "description": text} for kind, texts in kinds for text in texts]


def _set(path: Path, key: str, value: str) -> None:
    """Set one text of a YAML file and leave all else of it as it is, comments too."""
    text = path.read_text()
    node = yaml.compose(text, yaml.SafeLoader)
    for name in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((below for above, below in pairs if above.value == name), None)
    if not isinstance(node, yaml.ScalarNode):
        raise PublishError(f"{path} has no {key}: the published chart could not name its images")
    path.write_text(text[: node.start_mark.index] + json.dumps(value) + text[node.end_mark.index :])


def package(chart: Path, out: Path, epoch: int) -> Path:
    """Pack a chart with Helm, and then without what differs from one packing to the next. Raises PublishError."""
    out.mkdir(parents=True, exist_ok=True)
    run(HELM, "package", chart, "-d", out)
    (packed,) = out.glob("*.tgz")
    packed.write_bytes(normalized(packed.read_bytes(), epoch))
    os.utime(packed, (epoch, epoch))  # `helm push` writes the file's time into the manifest
    return packed


def normalized(packed: bytes, epoch: int) -> bytes:
    """Return a .tgz with the same files in one order, of one time, owner and mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(packed)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: (one.name != FIRST, one.name)):
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = member.size, epoch, 0o644
            new.addfile(entry, old.extractfile(member))
    return gzip.compress(out.getvalue(), mtime=epoch)


def copy(source: Path, folder: Path) -> Path:
    """Copy the chart of a source tree, links and all; return the copy."""
    return Path(shutil.copytree(source / "charts" / "trainyard", folder / "trainyard", symlinks=True))
