"""What a pod prints outlives it: real processes, a real pipe, files on disk."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests import patience
from trainyard.pod import log
from trainyard.telemetry import sinks

pytestmark = pytest.mark.takes(10)

CHATTY = """
import os, subprocess, sys
from trainyard.pod import log
from trainyard.core.exits import guarded
log.LAST_SECONDS = 180.0  # what keeps the output may be starved
def main():
    print("from the launcher", flush=True)
    subprocess.run([sys.executable, "-c", {child!r}])
    {last}
guarded(lambda: log.keep_output(main))
"""
GAP = re.compile(rb"\[(\d+) bytes were not kept: the file system is slow\]\n")
CRASH = "import faulthandler, os; faulthandler.enable(); print('a rank', flush=True); os.abort()"


@pytest.fixture
def run(tmp_path):
    """Run a program that keeps its log under tmp_path/logs; its result and the kept text by file."""

    def do(child: str = "pass", last: str = "return 0", limit: int = 1 << 20, folder=None):
        folder = folder or tmp_path / "logs"
        environ = {**os.environ, "TRAINYARD_LOGS": str(folder), "TRAINYARD_LOG_BYTES": str(limit)}
        code = CHATTY.format(child=child, last=last)
        done = patience.run([sys.executable, "-u", "-c", code], env=environ)
        kept = {p.name: p.read_text() for p in sorted(folder.iterdir())} if folder.is_dir() else {}
        return done, kept

    return do


def test_what_ranks_print_last_is_kept_and_shown(run):
    done, kept = run(child=CRASH, last="raise ValueError('the last of all')")
    assert done.returncode == 1
    (text,) = kept.values()
    for words in ("from the launcher", "a rank", "Fatal Python error: Aborted", "ValueError: the last of all"):
        assert words in text
        assert words in done.stdout + done.stderr
    assert "error: ValueError: the last of all" in done.stderr


def test_the_files_stay_within_bounds_and_the_log_is_whole(run):
    many = "for number in range(20000): print(f'line {number:06d} ' + 'x' * 20)"
    done, kept = run(child=many, limit=100_000)
    assert done.stdout.count("line ") == 20000
    assert 0 < sum(len(text) for text in kept.values()) <= 100_000 + 2 * log.CHUNK
    assert len(kept) == 2
    last = next(text for name, text in kept.items() if name.endswith(".log"))
    assert "line 019999" in last


def test_what_a_slow_file_system_loses_is_told_where_it_was(tmp_path, monkeypatch):
    """A pipe that nobody reads is the slowest case; small chunks must not fill the queue."""
    monkeypatch.setattr(log, "WAITING", 100_000)
    os.mkfifo(tmp_path / "worker-1.log")
    reading = os.open(tmp_path / "worker-1.log", os.O_RDONLY | os.O_NONBLOCK)
    kept = log.Kept(tmp_path / "worker-1.log", 1 << 40)
    put = [b"%06d\n" % number for number in range(40_000)]  # 280 kB; the pipe takes 64 KiB, and the thread's hands too
    for chunk in put:
        kept.put(chunk)
    got = read(reading, 70_000)  # then there is room again, behind what waits
    patience.wait("it writes no more", lambda: len(kept._waiting) <= 90_000, lambda: len(kept._waiting))
    kept.put(b"the last\n")
    closing = threading.Thread(target=kept.close, args=(patience.IDLE,))
    closing.start()
    got += read(reading)
    closing.join()
    os.close(reading)
    printed, place = b"".join(put) + b"the last\n", 0
    texts, lost = GAP.split(got)[::2], [*map(int, GAP.findall(got))]
    for text, missing in zip(texts, [*lost, 0], strict=True):
        assert text == printed[place : place + len(text)]
        place += len(text) + missing
    assert place == len(printed)
    assert lost
    assert len(printed) - sum(lost) >= 100_000


def read(pipe, size=1 << 30):
    """So many bytes of a pipe, or all until its writer closes it."""
    got = bytearray()

    def look():
        try:
            more = os.read(pipe, min(1 << 16, size - len(got)))
        except BlockingIOError:
            return False
        got.extend(more)
        return not more or len(got) == size

    patience.wait("nothing more is written", look, lambda: len(got))
    return bytes(got)


def test_a_closed_terminal_costs_what_is_shown_alone(tmp_path):
    shown, given = os.openpty()
    command = [sys.executable, "-I", log.__file__, str(tmp_path / "worker-0.log"), "1000000"]
    tee = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=given, text=True)
    os.close(given)
    os.write(tee.stdin.fileno(), b"before\n")
    seen = b""
    while not seen.endswith(b"\n"):  # the kernel makes two pieces of it
        seen += os.read(shown, 100)
    assert seen == b"before\r\n"
    os.close(shown)
    tee.send_signal(signal.SIGHUP)
    patience.communicate(tee, "after\n")
    assert tee.returncode == 0
    assert (tmp_path / "worker-0.log").read_text() == "before\nafter\n"


def test_another_start_writes_on(run):
    run()
    _, kept = run()
    (text,) = kept.values()
    assert text.count("from the launcher") == 2


def test_a_folder_that_cannot_be_written_costs_the_file_alone(run, tmp_path):
    (tmp_path / "file").write_text("")
    done, kept = run(folder=tmp_path / "file" / "logs")
    assert (done.returncode, kept) == (0, {})
    assert "from the launcher" in done.stdout
    assert "cannot be kept (Not a directory); training continues" in done.stdout


def test_nothing_is_kept_unless_asked_for(monkeypatch):
    monkeypatch.delenv("TRAINYARD_LOGS", raising=False)
    assert log.keep_output(lambda: 7) == 7


@pytest.mark.parametrize(
    ("hostname", "part"),
    [
        ("demo-pytorchjob-01234567-worker-1", "worker-1"),
        ("demo-pytorchjob-01234567-master-0", "master-0"),
        ("demo-pytorchjob-01234567-launcher-x7k2p", "launcher"),
        ("elsewhere", "elsewhere"),
    ],
)
def test_files_are_named_after_a_pods_part(hostname, part):
    assert log.part(hostname, "demo-pytorchjob-01234567") == part


def test_a_ranks_own_lines_stay_within_bounds_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "LOG_BYTES", 2000)
    ours = [True]
    sinks.log_to(tmp_path, 3, lambda: ours[0])
    try:
        for number in range(200):
            sinks.log.info("line %d", number)
        ours[0] = False
        sinks.log.info("line 200, when another job has the run directory")
    finally:
        sinks.log.handlers.pop().close()
    kept = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert set(kept) == {"rank-3.log", "rank-3.log.1"}
    assert sum(len(text) for text in kept.values()) <= 4000
    assert "line 199" in kept["rank-3.log"]
    assert "line 200" not in kept["rank-3.log"]
