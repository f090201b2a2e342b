"""Ends a preparation: the classes' file, nothing that does not belong to the plan, and the manifest last."""

import json
from collections import Counter

from trainyard.core.storage import storage
from trainyard.prepare.archives.tar import remove_leftovers
from trainyard.prepare.catalogue import Catalogue
from trainyard.prepare.job import Finished
from trainyard.prepare.plan import DatasetPlan, meaning
from trainyard.prepare.settings import Preparation
from trainyard.prepare.sources.base import Source
from trainyard.shards import manifest as manifests
from trainyard.shards.manifest import SPLITS, WORK, Manifest, SplitEntry


def publish(
    config: Preparation, catalogue: Catalogue, plan: DatasetPlan, source: Source, found: list[Finished]
) -> Manifest:
    """Write the classes, remove files that do not belong to the plan, and write the manifest."""
    root = config.out
    classes = [{"index": i, "synset": c.synset, "name": c.name} for i, c in enumerate(catalogue.classes)]
    text = (json.dumps(classes, indent=1) + "\n").encode()
    storage.write_file(root / manifests.CLASSES_FILE, text)
    known = {name for record in found for name in (record.entry.file, record.entry.index)}
    for split in SPLITS:
        for path in (root / split).iterdir():
            if f"{split}/{path.name}" not in known:
                path.unlink(missing_ok=True)
    wanted = meaning(config)
    splits = {}
    for split in SPLITS:
        shards = tuple(record.entry for record, shard in zip(found, plan.shards, strict=True) if shard.split == split)
        splits[split] = SplitEntry(sum(s.samples for s in shards), sum(s.bytes for s in shards), shards)
    manifest = Manifest(
        name=root.name,
        classes=len(classes),
        settings={key: value for key, value in wanted.items() if key != "source"},
        source={
            **wanted["source"],
            "bytes": source.size,
            "directory_sha256": catalogue.fingerprint,
            **({"sha256": config.source.sha256} if config.source.sha256 else {}),
        },
        plan=plan.key,
        splits=splits,
        classes_sha256=storage.hash_file(root / manifests.CLASSES_FILE),
        left_out=tuple(sorted(name for record in found for name in record.left_out)),
        seekable=_outcomes(found) if "seekable" in wanted else None,
        ignored=catalogue.ignored or None,
    )
    storage.write_file(root / manifests.FILE, manifest.to_json().encode())
    remove_leftovers(root / WORK)
    return manifest


def _outcomes(found: list[Finished]) -> dict[str, int]:
    """How many images were made seekable, and how many were not for which reason."""
    total: Counter[str] = Counter()
    for record in found:
        total.update(record.seekable)
    return dict(total)
