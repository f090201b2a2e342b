import contextlib
import errno
import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests import patience
from tests.unit.prepare.make_archives import DATA, HASTE, SYNSETS, config, contents, imagenet, picture, write_zip
from tests.util import small_disk
from trainyard.core.exits import ExitError, InputError, UserError
from trainyard.prepare import build as building
from trainyard.prepare import lock, writer
from trainyard.prepare import workers as crews
from trainyard.prepare.build import Options, build
from trainyard.shards import heartbeat
from trainyard.shards import manifest as manifests
from trainyard.shards.manifest import WORK
from trainyard.shards.reader import open_split


def command(out: Path, url: str, *more: str) -> list[str]:
    settings = ["--set", "source.kind=http", "--set", f"source.url={url}", "--set", f"out={out}", "--set", "shard_mb=1"]
    settings += ["--set", "seekable=false"]
    return [sys.executable, "-m", "trainyard", "prepare", "build", *settings, "--progress", "0.2", *more]


def test_every_picture_is_there_once_with_its_label(prepared):
    members = imagenet()
    order = sorted(SYNSETS)
    for split in ("train", "val"):
        shards = open_split(prepared, split)
        expected = {}
        for name, content in members.items():
            if name.startswith(f"{DATA}/{split}/"):
                key = name.rsplit("_", 1)[1].removesuffix(".JPEG")
                expected[content] = order.index(SYNSETS[int(key) % 3])
        found = {shards.read(i): int(shards.labels[i]) for i in range(len(shards))}
        assert len(shards) == len(expected)
        assert found == expected
        assert shards.class_names == ["thing 1", "thing 2", "thing 3"]
    assert [c["synset"] for c in json.loads((prepared / "classes.json").read_text())] == order


def test_shards_are_tars_that_any_tool_reads(prepared):
    manifest = manifests.load(prepared)
    assert len(manifest.splits["train"].shards) > 1
    shards = open_split(prepared, "train")
    at = 0
    for shard in manifest.splits["train"].shards:
        index = np.load(prepared / shard.index)
        with tarfile.open(prepared / shard.file) as tar:
            members = tar.getmembers()
            assert len(members) == 2 * shard.samples
            for row, image, label in zip(index, members[::2], members[1::2], strict=True):
                assert image.name == f"{at:09d}.jpg"
                assert label.name == f"{at:09d}.cls"
                assert (image.offset_data, image.size) == (row["offset"], row["size"])
                assert tar.extractfile(image).read() == shards.read(at)
                assert int(tar.extractfile(label).read()) == shards.labels[at]
                at += 1
    assert at == len(shards)


def test_samples_are_shuffled_by_the_seed_so_that_sequential_reading_is_fair(archive, prepared, tmp_path):
    labels = open_split(prepared, "train").labels
    changes = np.count_nonzero(np.diff(labels))
    assert changes > len(labels) / 2
    build(config(archive, tmp_path / "little", seed=1))
    assert not np.array_equal(open_split(tmp_path / "little", "train").labels, labels)


def test_bytes_do_not_depend_on_parallelism_or_transport(prepared, server, archive, tmp_path):
    build(config(archive, tmp_path / "one" / "little", workers=1))
    assert contents(tmp_path / "one" / "little") == contents(prepared)
    for workers in (1, 8):
        build(config(f"{server.url}/archive.zip", tmp_path / str(workers) / "little", workers=workers))
    assert contents(tmp_path / "1" / "little") == contents(tmp_path / "8" / "little")
    assert contents(tmp_path / "8" / "little", manifest=False) == contents(prepared, manifest=False)


def test_a_few_large_requests_fetch_many_pictures(server, tmp_path):
    build(config(f"{server.url}/archive.zip", tmp_path / "little"))
    assert len(server.requests) < 40


def test_complete_folder_downloads_nothing_also_without_its_server(server, tmp_path, capsys):
    settings = config(f"{server.url}/archive.zip", tmp_path / "little")
    build(settings)
    before = contents(tmp_path)
    server.requests.clear()
    build(settings)
    assert server.requests == []
    assert contents(tmp_path) == before
    assert "complete" in capsys.readouterr().err


def test_other_settings_on_a_complete_folder_are_refused_by_name(archive, tmp_path):
    build(config(archive, tmp_path / "little"))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"shard_mb was 1 and is 2.*another name, or delete"):
        build(config(archive, tmp_path / "little", shard_mb=2))
    with pytest.raises(UserError, match=r"source.path was"):
        build(config("/other.zip", tmp_path / "little"))
    assert contents(tmp_path) == before


def test_workers_and_decoding_may_change(archive, tmp_path):
    build(config(archive, tmp_path / "little"))
    build(config(archive, tmp_path / "little", workers=1, decode="all"))


def test_nothing_looks_done_after_a_failure_and_the_next_run_resumes(server, prepared, tmp_path):
    out = tmp_path / "little"
    server.fault = lambda number, handler: bool(list(out.glob("*/*.tar"))) and handler.refuse(404)
    settings = config(f"{server.url}/archive.zip", out, workers=1)
    with pytest.raises(UserError, match="404"):
        build(settings, Options(patience=HASTE))
    assert not manifests.exists(tmp_path / "little")
    assert list((tmp_path / "little").rglob("*.tmp")) == []
    with pytest.raises(UserError, match=r"manifest.json is missing"):
        open_split(tmp_path / "little", "train")
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "little").rglob("*.tar")}
    assert kept
    server.fault = lambda number, handler: False
    build(settings)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


def test_dead_at_each_step_of_publishing_the_same_command_ends_with_the_same_bytes(archive, prepared, tmp_path):
    """A child process dies at its n-th sync to disk, for every n: between any two renames."""
    deaths = 0
    for step in range(1, 100):
        out = tmp_path / str(step) / "little"
        child = os.fork()
        if child == 0:
            calls = []
            real = os.fsync

            def dying(descriptor, calls=calls, real=real, step=step):
                calls.append(descriptor)
                if len(calls) == step:
                    os._exit(9)
                real(descriptor)

            os.fsync = dying
            with contextlib.redirect_stderr(io.StringIO()):
                build(config(archive, out, workers=1))
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if not died:
            break
        deaths += 1
        build(config(archive, out))
        assert contents(out) == contents(prepared), f"died at sync {step}"
        assert list(out.rglob("*.tmp")) == []
    assert deaths > 10


def test_an_unfinished_folder_is_never_mixed_with_other_settings(archive, tmp_path, monkeypatch):
    out = tmp_path / "mixed" / "little"
    real = writer.OpenShard.close

    def fail_late(shard):
        if shard.plan.split == "val":
            raise ExitError("enough", 1)
        return real(shard)

    monkeypatch.setattr(writer.OpenShard, "close", fail_late)
    with pytest.raises(ExitError):
        build(config(archive, out, seed=1, workers=1))
    monkeypatch.setattr(writer.OpenShard, "close", real)
    assert list(out.rglob("*.tar"))
    build(config(archive, out, seed=2))
    build(config(archive, tmp_path / "fresh" / "little", seed=2))
    assert contents(out) == contents(tmp_path / "fresh" / "little")


def test_a_lost_or_cut_shard_is_made_again(archive, prepared, tmp_path, capsys):
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    (out / "train/shard-00000.tar").unlink()
    os.truncate(out / "val/shard-00000.index.npy", 100)
    with pytest.raises(UserError, match=r"shard-00000.tar.*No such file"):
        open_split(out, "train")
    build(config(archive, out))
    assert contents(out) == contents(prepared)
    assert "kept" in capsys.readouterr().err


def test_what_storage_took_and_did_not_keep_is_found_and_written_again(archive, prepared, tmp_path, monkeypatch, capfd):
    """A write fails, its second try is said to succeed, and nothing of it is there; no file system does so at will."""
    write, calls = writer._write_all, []

    def lying(descriptor, parts, offset):
        calls.append(offset)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if len(calls) > 2:
            write(descriptor, parts, offset)

    monkeypatch.setattr(writer, "_write_all", lying)
    out = tmp_path / "little"
    build(config(archive, out, workers=1))
    assert contents(out) == contents(prepared)
    said = capfd.readouterr().err
    assert "Input/output error; retried, and all is read back" in said
    assert "what was written is not there after a failure" in said
    assert "finished shards are kept" in said


def test_sigterm_ends_143_and_says_how_to_resume(server, tmp_path):
    server.hold(lambda number: number > 3)
    process = subprocess.Popen(command(tmp_path / "x", f"{server.url}/archive.zip"), stderr=subprocess.PIPE, text=True)
    patience.wait("it fetches pictures", lambda: len(server.requests) > 3, patience.still)
    # trainers that wait for the folder see whether a preparation runs
    patience.wait("it shows no life", lambda: heartbeat.signs(tmp_path / "x")[0], patience.still)
    process.send_signal(signal.SIGTERM)
    _, err = patience.communicate(process)
    assert process.returncode == 143
    assert "the same command resumes" in err
    assert not heartbeat.signs(tmp_path / "x")[0]


def test_of_two_preparations_one_works_and_the_other_waits_in_words(server, prepared, tmp_path):
    one_waits = server.hold(lambda number: number > 3)
    line = command(tmp_path / "little", f"{server.url}/archive.zip")
    two = [subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for _ in range(2)]

    def read(process):
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "waiting for process" in line:
                one_waits.set()
        return "".join(lines)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(read, two))
    assert [process.wait() for process in two] == [0, 0]
    assert sum("waiting for process" in text for text in said) == 1
    assert sum("nothing downloaded" in text for text in said) == 1
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)


def test_waiting_for_another_preparation_is_bounded_and_names_it_at_once(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_beat", lambda _, ended: ended.wait(patience.IDLE))  # on a busy machine it comes late
    release, held = threading.Event(), threading.Event()
    (tmp_path / "little" / WORK).mkdir(parents=True)

    def hold():
        with building.exclusive(tmp_path / "little" / WORK / "lock", 0, print):
            held.set()
            release.wait(patience.IDLE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(patience.IDLE)
    with pytest.raises(ExitError, match=rf"being prepared by process {os.getpid()}"):
        build(config(archive, tmp_path / "little"), Options(wait_seconds=0.3))
    release.set()
    thread.join()


def test_the_lock_of_a_dead_machine_is_taken_over(archive, prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    work = tmp_path / "little" / WORK
    work.mkdir(parents=True)
    with (work / "lock").open("w+b") as held:  # as a file server keeps it
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(b"process 7 on gone")
        held.flush()
        with pytest.raises(ExitError, match="being prepared by process 7 on gone; waited"):
            build(config(archive, tmp_path / "little"), Options(wait_seconds=2))  # an older version shows no life
        held.write(b", beat 0000000004\n")
        held.flush()
        build(config(archive, tmp_path / "little"))
    assert "process 7 on gone prepared" in capsys.readouterr().err
    assert contents(tmp_path / "little") == contents(prepared)


def test_a_holder_changes_the_lock_all_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    with lock.exclusive(tmp_path / "lock", 0, print):
        seen = set()
        patience.wait(
            "it does not change",
            lambda: seen.add((tmp_path / "lock").read_text()) or len(seen) > 2,
            patience.still,
        )
    assert all(f"process {os.getpid()} on" in text for text in seen if text)


def test_too_little_space_is_said_before_anything_is_fetched(archive, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    with pytest.raises(UserError, match=r"GB free, and .* GB are needed: free space"):
        build(config(archive, tmp_path / "little"))
    assert list(tmp_path.rglob("*.tar*")) == []


def test_a_disk_that_fills_up_is_named_and_nothing_looks_done(archive, prepared, tmp_path, monkeypatch):
    real, calls = os.pwritev, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 350:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(UserError, match=r"is full \(No space left on device\): free space.*finished shards are kept"):
        build(config(archive, tmp_path / "little", workers=1))
    assert not manifests.exists(tmp_path / "little")
    assert list(tmp_path.rglob("*.tmp")) == []
    monkeypatch.setattr(os, "pwritev", real)
    build(config(archive, tmp_path / "little"))
    assert contents(tmp_path / "little") == contents(prepared)


def test_a_thread_that_ends_late_hides_no_failure(monkeypatch):
    """It closes a shard while what is left after the failure of another thread is removed."""
    monkeypatch.setattr(crews, "ENDING_SECONDS", 0.0)
    job = SimpleNamespace(container=SimpleNamespace(source=SimpleNamespace(close=lambda: None)))
    crew, removed, end, turns = crews.Crew(job, [], None, None), [], threading.Event(), iter((0, 1))

    def run():
        if next(turns):
            raise ExitError("enough", 1)
        end.wait(patience.IDLE)

    class Shard:
        def remove(self):
            removed.append(self)
            crew._open.discard(self)

    monkeypatch.setattr(crew, "_run", run)
    crew._open.update((Shard(), Shard()))
    try:
        with pytest.raises(ExitError, match="enough"):
            crew.work(2)
    finally:
        end.set()
    assert len(removed) == 2


UNAWARE = """
import shutil, sys
real = shutil.disk_usage
shutil.disk_usage = lambda path: real("/")
from trainyard.prepare.command import main
from trainyard.core.exits import guarded
guarded(lambda: main(sys.argv[1:]))
"""


def test_a_really_full_file_system(archive, tmp_path):
    words = ["build", "--set", "source.kind=path", "--set", f"source.path={archive}"]
    words += ["--set", f"out={tmp_path}/little", "--set", "shard_mb=1"]
    done = small_disk.run_on(tmp_path, "1200k", sys.executable, "-c", UNAWARE, *words)
    assert done.returncode == 2
    assert "is full" in done.stderr


@pytest.mark.parametrize("out", ["file", "file/little"])
def test_a_folder_that_cannot_be_made_is_named_at_once(archive, tmp_path, capsys, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"{out}/.prepare cannot be made: a file is in its way"):
        build(config(archive, tmp_path / out))
    assert "retried" not in capsys.readouterr().err


def test_an_archive_replaced_under_a_damaged_folder_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", imagenet(60, 9))
    build(config(path, tmp_path / "little"))
    write_zip(path, imagenet(63, 9))
    (tmp_path / "little/train/shard-00000.tar").unlink()
    with pytest.raises(UserError, match="is not the one"):
        build(config(path, tmp_path / "little"))
    assert picture(0)


def test_the_summary_of_a_volume_counts_reads_and_asks_no_server(tmp_path, capsys):
    build(config(write_zip(tmp_path / "a.zip", imagenet(60, 9)), tmp_path / "little"))
    said = capsys.readouterr().err
    assert re.search(r"prepared .*; read [\d.]+ MB in [\d,]+ reads\n", said)
    assert "requests" not in said


LINE = (
    r"preparing: \d+ % · [\d,]+ of 390 images · \d of 3 shards · [\d.]+ MB/s · [\d,]+ images/s · "
    r"(\d+:\d\d left|time left unknown)"
)


def test_a_pod_says_a_line_every_few_seconds_and_where_the_time_went(server, tmp_path):
    server.fault = lambda number, handler: number == 8 and handler.reset()
    server.delay = 0.25
    line = command(tmp_path / "little", f"{server.url}/archive.zip", "--set", "workers=1")
    said = subprocess.run(line, capture_output=True, text=True, check=True).stderr
    assert len(re.findall(LINE, said)) >= 2, said
    assert " · 1 retries (last: " in said
    assert "300 train and 90 val samples, 3 classes, 3 shards" in said
    assert re.search(r"read [\d.]+ MB in \d+ requests, 1 retries", said)
    assert re.search(
        r"time went into: fetch [\d.]+ s \(\d+%\), check .*, decode .*, write .*, hash .*, sync .*%\)", said
    )


def test_a_terminal_shows_a_bar(server, tmp_path):
    server.delay = 0.15
    master, terminal = pty.openpty()
    line = command(tmp_path / "little", f"{server.url}/archive.zip", "--set", "workers=1")
    process = subprocess.Popen(line, stderr=terminal, env={**os.environ, "TERM": "xterm", "COLUMNS": "160"})
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 65536):
            said += data
    os.close(master)
    assert process.wait() == 0
    assert b"\xe2\x94\x81" in said
    assert b"images/s" in said
    assert b"preparing:" not in said
