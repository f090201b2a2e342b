"""The local half of the checks before training, without any peer. Runs as an init container.

    trainyard preflight --data /data/imagenet --results /results/runs/resnet50 --shm 8589934592 --timeout 3600

It waits up to `--timeout` for the dataset's manifest, with `--idle` only while a preparation makes progress. Then it
checks the data's files and sizes, that results can be written, shared memory and, with `--gpus`, that each GPU
computes and keeps what is written to its memory. The main container checks the peers, because a pod in its init phase
has no DNS name yet.
"""

import argparse
import contextlib
import errno
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path

from trainyard.core.exits import (
    CURED_BY_RETRY,
    Exit,
    ExitError,
    InputError,
    UserError,
    cause_of,
    explain_permissions,
    write_termination_message,
)
from trainyard.core.files import peek_json, whole
from trainyard.core.storage import storage
from trainyard.pod import gpus
from trainyard.shards import heartbeat
from trainyard.shards import manifest as manifests

EVERY = 5.0
MOST_TRIES = 4  # of one pod in a row, as many starts as run.max_restarts allows by default
_WHERE = "see `kubectl get jobs,pods` and the logs of the dataset's Job"


def main(arguments: list[str] | None = None) -> int:
    """Check; returns 0, raises what fails, or hands the failure to the main container.

    Operators look at the main container alone: a pod whose init container fails is recreated without end. So with
    TRAINYARD_PREFLIGHT set, message and exit code go to that file and this container ends 0; the trainer then ends with
    them before anything else.
    """
    options = _parser().parse_args(arguments)
    # A container's first process ignores SIGTERM by default, and an uninstall would take the whole grace period
    signal.signal(signal.SIGTERM, lambda *_: os._exit(Exit.STOPPED))
    handover = os.environ.get("TRAINYARD_PREFLIGHT")
    if not handover:
        check(options)
        return Exit.DONE
    Path(handover).unlink(missing_ok=True)
    try:
        check(options)
    except Exception as error:
        meant = isinstance(error, UserError | ExitError)
        message = str(error) if meant else f"{type(error).__name__}: {error}"
        code = error.code if isinstance(error, ExitError) else int(cause_of(error).code)
        print(f"error: {message}", file=sys.stderr, flush=True)
        write_termination_message(message)
        storage.write_json(Path(handover), {"message": message, "code": limit_retries(code, options.results)})
    else:
        forget_failures(options.results)
    return Exit.DONE


def limit_retries(code: int, results: Path | None) -> int:
    """Return the code to end with: 1 in place of one that is retried, after MOST_TRIES failures of this pod in a row.

    The trainer cannot count what fails before it. Storage that does not answer cannot be counted in.
    """
    if code < CURED_BY_RETRY or results is None:
        return code
    with contextlib.suppress(OSError, UserError, ExitError):
        note = _note(results)
        tries = whole(peek_json(note), "tries") + 1
        note.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(note, {"tries": tries, "code": code})
        return code if tries < MOST_TRIES else Exit.FAILED
    return code


def forget_failures(results: Path | None) -> None:
    """Forget earlier failures of this pod's checks."""
    if results is not None:
        with contextlib.suppress(OSError):
            _note(results).unlink(missing_ok=True)


def _note(results: Path) -> Path:
    """Where a pod counts its failures; a recreated pod has the same name."""
    return results / "restarts" / f"preflight-{os.uname().nodename}.note"


def check(options: argparse.Namespace) -> None:
    """Check what the options name, the cheapest first; raises UserError and ExitError."""
    if options.shm:
        check_shared_memory(Path("/dev/shm"), options.shm)
    if options.gpus:
        gpus.check(options.gpus, options.gpu_memory)
    if options.results:
        check_results(options.results, options.results_free)
    for path in options.secret:
        wait_for_secret(path, options.secret_timeout, options.every)
    if options.weights:
        wait_for_weights(options.weights, options.timeout, options.every)
    if options.data:
        wait_for_data(options.data, options.timeout, options.every, options.idle)
        check_data(options.data)


def check_shared_memory(mount: Path, wanted: int) -> None:
    """Check that /dev/shm, through which loader workers and NCCL pass data, is large enough; raises UserError."""
    facts = os.statvfs(mount)
    found = facts.f_blocks * facts.f_frsize
    # tmpfs rounds to whole pages
    if found + facts.f_frsize < wanted:
        raise UserError(
            f"{mount} has {_size(found)} instead of {_size(wanted)}: mount a memory-backed emptyDir of that size there "
            "(global.training.shmSize); it gets no more than the pod's memory limit and the node's memory hold"
        )
    _say(f"shared memory: {_size(found)}")


def check_results(folder: Path, free_wanted: int) -> None:
    """Check, without creating it, that the run directory can be written and has space; raises UserError."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        storage.perform(place, _probe, place)
    except OSError as error:
        raise UserError(_refused(place, error)) from None
    free = shutil.disk_usage(place).free
    if free < free_wanted:
        raise UserError(
            f"{place} has {_size(free)} free, and {_size(free_wanted)} are wanted: free space or enlarge the claim "
            "(global.storage.results)"
        )
    _say(f"results: {place} can be written, {_size(free)} free")


def _probe(place: Path) -> None:
    """Write a file and remove it."""
    probe = place / f".preflight-{os.uname().nodename}-{uuid.uuid4().hex[:8]}"
    try:
        with probe.open("xb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


def wait_for_secret(path: Path, timeout: float, every: float = EVERY) -> None:
    """Wait for a file of a Secret that an operator creates; raises UserError.

    The kubelet brings a Secret that appears later into the pod within two minutes.
    """
    started, said = time.monotonic(), -every
    while not path.exists():
        passed = time.monotonic() - started
        if passed >= timeout:
            raise UserError(
                f"{path} did not appear within {timeout:.0f} s: its Secret does not exist, or lacks the key; see "
                "`kubectl get externalsecrets,secrets`; a longer secrets.external.wait if it is only late"
            )
        if passed - said >= every:
            said = passed
            _say(f"waiting for {path}, a Secret that an operator creates, {timeout - passed:.0f} s left")
        time.sleep(min(1.0, every))


def wait_for_data(root: Path, timeout: float, every: float = EVERY, idle: float = 0) -> None:
    """Wait for the dataset's manifest, with a line every few seconds on the preparation's progress; raises UserError.

    With `idle`, give up after so many seconds without progress: a trainer that waits holds quota that the preparation
    may need.
    """
    started = said = moved = looked = time.monotonic()
    seen = heartbeat.signs(root) if idle else None
    while not manifests.exists(root):
        now = time.monotonic()
        if idle and now - looked >= min(every, idle / 4):  # not each second: every pod lists folders for it
            looked = now
            if (found := heartbeat.signs(root)) != seen:
                seen, moved = found, now
        if idle and now - moved >= idle:
            raise UserError(_abandoned(root, now - moved))
        if now - started >= timeout:
            raise UserError(
                f"{root / manifests.FILE} did not appear within {timeout:.0f} s ({progress(root)}): the dataset is not "
                f"prepared; {_WHERE}; is global.dataset.name its name? Else raise the time to wait "
                "(global.dataset.wait)"
            )
        if now - said >= every or said == started:
            left = min(timeout - (now - started), idle - (now - moved) if idle else timeout)
            _say(f"waiting for {root / manifests.FILE} ({progress(root)}), {left:.0f} s left; {_WHERE}")
            said = now
        time.sleep(min(1.0, every, max(timeout - (now - started), 0.01)))


def wait_for_weights(path: Path, timeout: float, every: float = EVERY) -> None:
    """Wait for the pretrained weights that the run's settings in a file name, unless it resumes; raises UserError."""
    from trainyard import config  # imported late: without weights to wait for, nothing needs it
    from trainyard.models import weights
    from trainyard.run import resuming

    run = config.build(config.read_file(path))
    started, said = time.monotonic(), -every
    while weights.is_fetched(run.model.pretrained):
        try:
            _say(f"weights: {weights.file_of(run.model, run.data)}")
            return
        except InputError as error:
            if resuming.recorded_settings(run.run, run.resume):
                _say("weights: not there, and not needed: the run resumes from a checkpoint")
                return
            passed = time.monotonic() - started
            if passed >= timeout:
                raise UserError(
                    f"{error} (waited {passed:.0f} s); see `kubectl get jobs,pods` and the logs of the dataset's Job; "
                    "the time to wait is global.dataset.wait"
                ) from None
            if passed - said >= every:
                said = passed
                folder = weights.folder_of(run.model, run.data)
                _say(f"waiting for the weights in {folder}, {timeout - passed:.0f} s left")
        time.sleep(min(1.0, every))


def progress(root: Path) -> str:
    """Return the progress of a dataset's preparation, in a few words."""
    if not root.is_dir():
        return "the folder is not there yet: the preparation has not started"
    shards = heartbeat.count_shards(root)
    return f"{shards} shards are finished" if shards else "no shard is finished yet"


def check_data(root: Path) -> None:
    """Compare the files of a prepared dataset with its manifest."""
    manifest = manifests.load(root)
    if problems := manifests.wrong_files(root, manifest):
        raise UserError(f"{problems[0]} ({len(problems)} wrong in all); {manifests.REMEDY}")
    counts = ", ".join(f"{split.samples:,} {name} samples" for name, split in manifest.splits.items())
    _say(f"data: {root} is complete: {counts}, {manifest.classes:,} classes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard preflight", description="Check this pod before training.")
    parser.add_argument("--data", type=Path, help="prepared dataset to wait for and check")
    parser.add_argument("--weights", type=Path, help="settings of the run, whose pretrained weights to wait for")
    parser.add_argument("--results", type=Path, help="run directory, or where it will be")
    parser.add_argument("--results-free", type=int, default=256 << 20, help="bytes that must be free there")
    parser.add_argument("--shm", type=int, default=0, help="bytes that /dev/shm must have")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that must be usable")
    parser.add_argument("--gpu-memory", type=float, default=0, help="most seconds to test the memory of each")
    parser.add_argument(
        "--secret", type=Path, action="append", default=[], help="file of a mounted Secret to wait for; may be repeated"
    )
    parser.add_argument("--secret-timeout", type=float, default=600, help="most seconds to wait for it")
    parser.add_argument("--timeout", type=float, default=600, help="most seconds to wait for the dataset")
    parser.add_argument("--idle", type=float, default=0, help="most of them in which nobody prepares it; 0: any")
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between lines while waiting")
    return parser


def _abandoned(root: Path, seconds: float) -> str:
    return (
        f"nobody has prepared {root} for {seconds:.0f} s ({progress(root)}), and its preparation may wait in the queue "
        "for the quota that this job holds: the job ends to give it back. When the dataset is complete, delete the job "
        "and upgrade its release; or raise the time to wait (global.dataset.idleWait)"
    )


def _refused(place: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place} is full: free space or enlarge the claim (global.storage.results)"
    if error.errno == errno.EROFS:
        return f"{place} is mounted read-only: results need a claim that can be written"
    return (
        f"{place} cannot be written as uid {os.getuid()} and gid {os.getgid()} ({error.strerror}): set fsGroup, where "
        f"the volume heeds it; {explain_permissions(place)}"
    )


def _size(number: int) -> str:
    return f"{number / (1 << 30):.2f} GiB" if number >= 1 << 28 else f"{number / (1 << 20):.1f} MiB"


def _say(text: str) -> None:
    print(f"preflight: {text}", flush=True)
