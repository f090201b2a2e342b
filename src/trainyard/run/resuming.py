"""Which checkpoint a start will resume from, before it has the run directory: nothing is changed, torch not imported.

What decides is `RunDirectory.find_checkpoint`; this looks at the same names, and trusts a manifest alone.
"""

from pathlib import Path
from typing import Any

from trainyard.config.sections.running import RunSettings
from trainyard.core.storage import storage
from trainyard.run import checkpoint, checkpoint_manifest, starts
from trainyard.run.directory import is_retry


def recorded_settings(run: RunSettings, resume: str) -> dict[str, Any]:
    """Return the settings that the checkpoint records from which a start resumes; empty where there is none.

    Raises UserError and StorageError.
    """
    for path in _candidates(Path(run.dir), resume):
        meta = storage.read_json(path / "manifest.json")
        settings = meta.get("config")
        if not checkpoint_manifest.find_fault(meta) and isinstance(settings, dict):
            return settings
    return {}


def _candidates(root: Path, resume: str) -> list[Path]:
    """Return the folders of checkpoints that a start may resume from, the first choice first."""
    own = checkpoint.steps(root / "checkpoints")[::-1]
    if resume == "auto":
        return own
    if resume == "never":
        return own if is_retry(root) else []
    begun = starts.begun_from(root, resume)
    later = [] if begun is None else [path for path in own if int(path.name[5:]) > begun]
    return [*later, Path(resume)]
