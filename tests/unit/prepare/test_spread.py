"""Several processes or pods share a preparation without communication, also when one of them dies and restarts."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import patience
from tests.unit.prepare.make_archives import config, contents
from tests.unit.prepare.test_build import command
from trainyard.core.exits import ExitError
from trainyard.prepare import build as building
from trainyard.prepare.build import Options, build
from trainyard.shards import manifest as manifests
from trainyard.shards.manifest import WORK


def share(settings, parts, **how):
    """Prepare with all parts at once."""
    options = [Options(part, parts, wait_seconds=patience.IDLE, progress_seconds=0.05, **how) for part in range(parts)]
    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(lambda one: build(settings, one), options))


@pytest.mark.parametrize(("parts", "workers"), [(2, 8), (3, 1), (7, 8)])
def test_bytes_depend_neither_on_the_parts_nor_on_their_workers(archive, prepared, tmp_path, parts, workers):
    done = share(config(archive, tmp_path / "little", workers=workers), parts)
    assert done[0] is not None
    assert contents(tmp_path / "little") == contents(prepared)
    assert list((tmp_path / "little").rglob("*.tmp")) == []


def test_whichever_part_ends_last_publishes(archive, prepared, tmp_path):
    out = tmp_path / "little"
    for part in (0, 2, 1):
        how = Options(part, 3, wait_seconds=0, progress_seconds=0.01)
        if part == 0:
            with pytest.raises(ExitError, match=r"the other parts made no shard .*look at their pods"):
                build(config(archive, out), how)
        else:
            assert (build(config(archive, out), how) is not None) == (part == 1)
        assert manifests.exists(out) == (part == 1)
    assert contents(out) == contents(prepared)


def test_a_part_that_is_killed_and_comes_back(server, prepared, tmp_path):
    """As an indexed Job does it: three pods, one killed in the middle, and another in its place."""
    out = tmp_path / "little"
    in_the_middle = ".prepare/train-00000.*.tmp"
    killed = server.hold(lambda number: list(out.glob(in_the_middle)))

    def start(index):
        environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index), "TRAINYARD_PREPARE_PARTS": "3"}
        line = command(out, f"{server.url}/archive.zip", "--set", "workers=1")
        return subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)

    pods = [start(index) for index in range(3)]
    patience.wait("a shard is begun", lambda: list(out.glob(in_the_middle)), patience.still)
    pods[0].kill()
    pods[0].communicate()
    killed.set()
    pods[0] = start(0)
    said = [patience.communicate(pod)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0, 0]
    assert any(f"prepared {out}" in text for text in said)
    assert contents(out, manifest=False) == contents(prepared, manifest=False)
    assert list(out.rglob("*.tmp")) == []


def test_a_complete_folder_never_looks_incomplete_to_trainers(archive, tmp_path, monkeypatch):
    """A part that restarts while another one publishes must not remove the manifest."""
    out, settings = tmp_path / "little", config(archive, tmp_path / "little")
    real, seen = building.read_catalogue, []

    def meanwhile(*arguments):
        monkeypatch.setattr(building, "read_catalogue", real)
        share(settings, 2)
        return real(*arguments)

    monkeypatch.setattr(building, "read_catalogue", meanwhile)
    publish = building.publish
    monkeypatch.setattr(building, "publish", lambda *how: seen.append(manifests.exists(out)) or publish(*how))
    build(settings, Options(2, 3, progress_seconds=0.05))
    assert seen[-1]


def test_one_that_works_alone_and_parts_keep_out_of_each_others_way(archive, prepared, tmp_path, capsys):
    out, release, held = tmp_path / "little", threading.Event(), threading.Event()
    (out / WORK).mkdir(parents=True)

    def hold():
        with building.exclusive(out / WORK / "lock", 0, print):
            held.set()
            release.wait(patience.IDLE)

    alone = threading.Thread(target=hold)
    alone.start()
    assert held.wait(patience.IDLE)
    with pytest.raises(ExitError, match="being prepared by process"):
        build(config(archive, out), Options(1, 3, wait_seconds=0.2))
    said = []
    with ThreadPoolExecutor(1) as pool:
        parts = pool.submit(share, config(archive, out), 3)

        def waits():
            said.append(capsys.readouterr().err)
            return "waiting for process" in "".join(said) or parts.done()

        patience.wait("they wait in words", waits, patience.still)
        release.set()
        parts.result()
    alone.join()
    assert "waiting for process" in "".join(said)
    assert contents(out) == contents(prepared)
