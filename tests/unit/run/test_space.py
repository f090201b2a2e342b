"""A volume that is full, met by what is not a checkpoint: a line of metrics, a note, a summary, the run's start."""

import errno
import os
import sys
from pathlib import Path

import pytest

from tests.util import small_disk
from trainyard.run.space import no_space

FULL = """
import sys
from pathlib import Path
from trainyard import config
from trainyard.core.storage import Appender, storage
from trainyard.parallel.environment import Place
from trainyard.run import failures, starts
from trainyard.run.directory import RunDirectory

run = Path(sys.argv[1]) / "run"
settings = config.build({"recipe": "demo", "run": {"dir": str(run)}})
(run / "checkpoints" / "step-00000008").mkdir(parents=True)
mark = config.fingerprint(settings)
attempt = failures.Attempt(settings.run, mark, Place(0, 1, 0, 1), 8, 0, 8, settings.data)

def said(action):
    try:
        action()
    except Exception as error:
        meant = failures.meaning(attempt, error) if isinstance(error, OSError) else error
        print(getattr(meant, "code", 2), meant)

lines, written = Appender(run / "metrics.jsonl"), 0

def fill():
    global written
    while True:
        lines.write("x" * 98 + "\\n")
        written += 1

said(fill)
print(written == (run / "metrics.jsonl").stat().st_size // 99)
said(lambda: storage.write_json(run / "summary.json", {"text": "x" * 9000}))
said(lambda: starts.count(settings.run, mark))
said(lambda: RunDirectory(settings.run, settings.resume, config.as_tree(settings)).enter())
print(sorted(path.name for path in run.iterdir()))
"""


def test_a_full_volume_is_said_with_path_space_and_remedy(tmp_path: Path) -> None:
    done = small_disk.run_on(tmp_path, "64k", sys.executable, "-c", FULL, tmp_path)
    assert done.returncode == 0, done.stderr
    metrics, whole, *others, left = done.stdout.splitlines()
    remedy = (
        "No space left on device (0.0 MB free there); the last checkpoint, step-00000008, is whole. Make room there, "
        "enlarge the claim or its quota, or lower checkpoint.keep_last, then start again"
    )
    assert metrics == f"1 rank 0: {tmp_path}/run/metrics.jsonl cannot be written: {remedy}"
    assert whole == "True", "a line of which a part was written counts as written"
    assert others[0] == f"1 rank 0: {tmp_path}/run/summary.json cannot be written: {remedy}"
    assert [line.startswith(f"1 {tmp_path}/run/") and line.endswith(remedy) for line in others[1:]] == [True, True]
    assert left == "['checkpoints', 'leases', 'metrics.jsonl', 'restarts']"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_is_beside_the_run_has_another_remedy(tmp_path: Path, number: int) -> None:
    run = tmp_path / "runs" / "a"
    said = no_space(OSError(number, os.strerror(number), "/tmp/torchinductor/x.py"), run)
    assert said.startswith(f"/tmp/torchinductor/x.py cannot be written: {os.strerror(number)} (")
    assert said.endswith("MB free there); make room there, then start again")
    nameless = no_space(OSError(number, os.strerror(number)), run)
    assert nameless.startswith(f"{run} cannot be written: ")
    assert "there is no checkpoint yet" in nameless
