"""SIGKILL at any moment of a preparation's life, then the same command: what is finished is kept, and the bytes are
those of an undisturbed preparation."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import numpy as np
import pytest

from tests import patience
from tests.fakes import files
from tests.unit.prepare.make_archives import config, contents, imagenet, write_zip
from tests.unit.prepare.test_build import command
from trainyard.prepare.build import build
from trainyard.shards import manifest as manifests

pytestmark = pytest.mark.takes(40)


def preparing(out, url, workers=2):
    """Prepare in a separate process, which needs no time to start."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 2)
            build(config(url, out, workers=workers))
            code = 0
        os._exit(code)
    return child


def finished(out):
    """The shards that have a record, and when they were written."""
    records = (path.stem.split("-") for path in (out / ".prepare").glob("*-*.json"))
    return {(split, number): (out / split / f"shard-{number}.tar").stat().st_mtime_ns for split, number in records}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An archive of more shards than a kill interrupts, over HTTP; and what comes of it, undisturbed."""
    folder = tmp_path_factory.mktemp("kills")
    write_zip(folder / "archive.zip", imagenet(900, 60))
    with files.running(folder) as server:
        server.delay = 0.04
        yield server


def wait_for_a_shard(out, before, child):
    """Wait until one more shard is finished, or the process has ended."""
    while len(finished(out)) <= before and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.005)


def kill_again_and_again(url, out, kills, seed):
    """Kill at random times over the life of a preparation; return how many shards each kill left."""
    started = time.monotonic()
    build(config(url, out.parent / "whole" / out.name, workers=2))
    life = time.monotonic() - started
    chance = np.random.Generator(np.random.Philox(key=seed))
    stages, killed = [], 0
    while killed < kills:
        before = finished(out)
        child = preparing(out, url)
        if len(stages) % 2:
            # On a busy machine no shard might ever be finished in the time that was measured
            wait_for_a_shard(out, len(before), child)
        time.sleep(float(chance.uniform(0, 0.6 * life)))
        os.kill(child, signal.SIGKILL)
        fell = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        killed += fell
        after = finished(out)
        assert {shard: after.get(shard) for shard in before} == before, "a finished shard was not kept"
        stages += [len(after)] * fell
        if manifests.exists(out):
            # From the start again, so that no kill falls on a finished folder; the page may be missing yet
            build(config(url, out, workers=2))
            assert contents(out) == contents(out.parent / "whole" / out.name)
            for path in sorted(out.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    return stages


@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_random_times_the_same_command_ends_with_the_same_bytes(served, tmp_path, kills):
    out, url = tmp_path / "little", f"{served.url}/archive.zip"
    stages = kill_again_and_again(url, out, kills, seed=kills)
    assert len(set(stages)) > 2, stages
    build(config(url, out, workers=2))
    assert contents(out) == contents(tmp_path / "whole" / "little")
    assert list(out.rglob("*.tmp")) == []


def test_a_killed_command_is_resumed_by_the_same_command(served, tmp_path):
    """The whole sequence once, as a user would: the command, kill -9, the command."""
    out, url = tmp_path / "little", f"{served.url}/archive.zip"
    killed = served.hold(lambda number: len(finished(out)) > 1)
    process = subprocess.Popen(command(out, url, "--set", "workers=1"), stderr=subprocess.DEVNULL)
    patience.wait("two shards are finished", lambda: len(finished(out)) > 1, patience.still)
    process.kill()
    process.wait()
    killed.set()
    kept = finished(out)
    done = subprocess.run(command(out, url), capture_output=True, text=True, check=True)
    assert f"{len(kept)} of 6 shards are finished from before and kept" in done.stderr
    assert kept.items() <= finished(out).items()
    build(config(url, tmp_path / "whole" / "little"))
    assert contents(out) == contents(tmp_path / "whole" / "little")
