"""Keeps what a pod prints beside its run, bounded in size, so that it outlives the pod: also the last traceback.

`keep_output` sends the pod's output to a separate process, which prints it and writes it to a file too, so that the
last words of a crashing process are not lost. The file is named after the pod's part in the job (worker-1.log), not
after the job; a later job appends to it. At half of the bytes to keep it becomes worker-1.log.1, and the former one is
removed. A slow or full file system costs lines in the file and never delays training.

    TRAINYARD_LOGS        folder to keep them in; unset, nothing is kept
    TRAINYARD_LOG_BYTES   most bytes to keep of a pod, both files together

Why not torchrun's `--log-dir DIR --tee 3`: it was tried. It keeps only the ranks' output, not the launcher's (checks
before training, why it ended), in a folder with a random name for each start, and without bound (two ranks that print
20 MB leave two files of 20 MB). MPI's ranks have no torchrun.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from io import FileIO
from pathlib import Path

DEFAULT_BYTES = 64 << 20
CHUNK = 1 << 16
WAITING = 16 << 20  # bytes that may wait for the file system
LAST_SECONDS = 20.0  # most that the end of a pod waits for a slow file system


def keep_output(main: Callable[[], int]) -> int:
    """Run a program's main function, keeping what this process and its children print; returns what it returns."""
    folder = os.environ.get("TRAINYARD_LOGS")
    if not folder or _is_of_others(folder):
        return main()
    path = Path(folder) / f"{part(socket.gethostname(), os.environ.get('TRAINYARD_JOB', ''))}.log"
    streams = os.dup(1), os.dup(2)
    tee = _start_tee(path, *streams)
    last_word = ""
    try:
        print(f"log: {socket.gethostname()} starts, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}", flush=True)
        return main()
    except BaseException:
        # our caller prints it after the file is closed, so the file gets it here
        last_word = traceback.format_exc()
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, saved in zip((1, 2), streams, strict=True):
            os.dup2(saved, number)
        try:
            tee.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            tee.kill()  # a left-over process still holds the pipe
        if last_word:
            with contextlib.suppress(OSError), path.open("a") as file:
                file.write(last_word)


def _is_of_others(folder: str) -> bool:
    """Whether the run directory is another release's, where nothing is kept; the ranks will say so and end."""
    from trainyard.run import owner  # imported late: the process that keeps the output needs none of it

    try:
        owner.refuse_strangers_of(Path(folder).parent)
    except owner.StrangerError:
        os.environ.pop("TRAINYARD_LOGS")  # the check of the peers keeps a note there, too
        return True
    except OSError:
        return False
    return False


def _start_tee(path: Path, out: int, err: int) -> "subprocess.Popen[bytes]":
    """Start the process that keeps the output; this one and its later children print to it."""
    reading, writing = os.pipe()
    line = [sys.executable, "-I", __file__, str(path), os.environ.get("TRAINYARD_LOG_BYTES", str(DEFAULT_BYTES))]
    tee = subprocess.Popen(line, stdin=reading, stdout=out, stderr=err)
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(reading)
    os.close(writing)
    return tee


def part(hostname: str, job: str) -> str:
    """Get a pod's part in its job: `worker-1` of `demo-pytorchjob-0123abcd-worker-1`; launchers have a random end."""
    name = hostname.removeprefix(f"{job}-") if job else hostname
    return "launcher" if name.startswith("launcher") else name


class Kept:
    """The file and the one before it, written by a separate thread."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._half = path, max(limit // 2, 1)
        self._waiting, self._lost, self._closed = bytearray(), 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Keep a chunk, or count it as lost when the file system does not keep up."""
        with self._changed:
            if len(self._waiting) + len(chunk) > WAITING:
                self._lost += len(chunk)
            else:
                self._waiting += self._gap() + chunk
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write what waits, within `seconds` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _gap(self) -> bytes:
        """Return a line in place of what was lost, if anything was."""
        lost, self._lost = self._lost, 0
        return f"[{lost} bytes were not kept: the file system is slow]\n".encode() if lost else b""

    def _next(self) -> bytes:
        """Return what to write next; nothing once it is closed and all is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            chunk = bytes(self._waiting[:CHUNK])
            del self._waiting[:CHUNK]
            return chunk or self._gap()

    def _run(self) -> None:
        try:
            file, size = self._open()
            while chunk := self._next():
                if size and size + len(chunk) > self._half:
                    file.close()
                    with contextlib.suppress(FileNotFoundError):  # the run was moved aside meanwhile
                        self._path.replace(self._path.with_name(self._path.name + ".1"))
                    file, size = self._open()
                file.write(chunk)
                size += len(chunk)
        except OSError as error:
            os.write(1, f"log: {self._path} cannot be kept ({error.strerror}); training continues\n".encode())

    def _open(self) -> tuple[FileIO, int]:
        """Return the file, to append to, and its size in bytes."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab", buffering=0)
        return file, os.fstat(file.fileno()).st_size


def tee(path: Path, limit: int) -> None:
    """Pass standard input on to standard output, and keep it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when those who write have ended
    file = Kept(path, limit)
    while chunk := os.read(0, CHUNK):
        file.put(chunk)
        view = memoryview(chunk)
        with contextlib.suppress(OSError):  # the terminal was closed; who writes goes on, and the file too
            while view:
                view = view[os.write(1, view) :]
    file.close(LAST_SECONDS - 1)


if __name__ == "__main__":
    tee(Path(sys.argv[1]), int(sys.argv[2]))
