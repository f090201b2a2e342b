"""The types are checked also where a killed run has left mypy's cache half-written."""

import os
import subprocess
from pathlib import Path

from tests.checkout import ROOT


def test_a_torn_cache_is_dropped(tmp_path: Path) -> None:
    def check() -> subprocess.CompletedProcess[str]:
        source = tmp_path / "sound.py"
        source.write_text("import json\n\n\ndef count(text: str) -> int:\n    return len(json.dumps(text))\n")
        env = os.environ | {"TRAINYARD_CACHE": str(tmp_path)}
        command = [ROOT / "scripts/types", "3.12", source]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    whole = check()
    assert whole.returncode == 0, whole.stdout
    stores = [path for path in (tmp_path / "mypy").rglob("cache*.db") if path.stat().st_size]
    assert stores, sorted((tmp_path / "mypy").rglob("*"))
    for path in stores:
        os.truncate(path, path.stat().st_size // 2)
    torn = check()
    assert torn.returncode == 0, torn.stdout
    assert "once more without it" in torn.stdout
    again = check()  # what the torn run dropped is learnt again
    assert (again.returncode, again.stdout) == (0, "")
