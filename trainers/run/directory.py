"""The run directory: whether its run is over, and what it resumes from.

lease.json      the process that may write here (lease.py)
restarts/       restarts since the last new checkpoint (starts.py)
failed.json     why the run ended for good; a retry of the same job and settings ends at once with the same message
previous/       what `resume: never` found here
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainers.config import Config, as_tree, fingerprint
from trainers.exits import Exit, ExitError, UserError
from trainers.files import entries, read_json, retried, sync_folder, write_atomically, write_json
from trainers.parallel.environment import restart_count
from trainers.run import checkpoint, starts
from trainers.run.lease import Lease, job_name

KEPT = ("lease.json", "previous", "restarts")


def identity(config: Config, batch: int, classes: int | None = None, samples: int | None = None) -> dict[str, Any]:
    """What must stay the same for a run to be resumed; None is not known.

    Another optimizer would find no moments that it can use, another `no_decay` trains differently, and another seed or
    number of training samples changes the order of the samples.
    """
    return {
        "model.name": config.model.name,
        "model.num_classes": classes,
        "batch.global": batch,
        "seed": config.seed,
        "optimizer.name": config.optimizer.name,
        "optimizer.no_decay": sorted(config.optimizer.no_decay),
        "data.samples": samples,
    }


def recorded_identity(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The identity that a checkpoint or a summary recorded; older ones have a part of it in their settings alone."""
    config = meta.get("config", {})
    optimizer = config.get("optimizer", {})
    found = {
        "seed": config.get("seed"),
        "optimizer.name": optimizer.get("name"),
        "optimizer.no_decay": sorted(optimizer["no_decay"]) if "no_decay" in optimizer else None,
    }
    return {**found, **meta.get("identity", {})}


def refuse_other(found: Mapping[str, Any], wanted: Mapping[str, Any], where: Path) -> None:
    """Raise UserError where a recorded identity is another run's; what either does not know is not compared."""
    for key, value in wanted.items():
        if value is not None and found.get(key) is not None and found[key] != value:
            raise UserError(
                f"{key} = {value!r}, but {where} holds a run with {found[key]!r}; give this run another name "
                "(run.dir, on a cluster training.name), or set resume to never"
            )


def is_retry(config: Config) -> bool:
    """Whether this process continues what the same job began, rather than beginning something."""
    job = job_name()
    return restart_count() > 0 or (bool(job) and read_json(Path(config.run.dir) / "lease.json").get("job") == job)


def over_already(config: Config, batch: int) -> str | None:
    """Say so if the run is finished; raises ExitError if it failed permanently. Every process asks this first."""
    path = Path(config.run.dir)
    if config.resume == "never" and not is_retry(config):
        return None
    failed = read_json(path / "failed.json")
    # A user often mends wrong input outside the settings, so only an automatic retry of the same job is refused.
    by_machine = job_name() or restart_count() > 0
    permanent = failed.get("code") == Exit.NAN or (failed.get("code") == Exit.CONFIG and by_machine)
    if permanent and failed.get("fingerprint") == fingerprint(config) and failed.get("job") == job_name():
        raise ExitError(
            f"{failed['message']} (an earlier try; remove {path / 'failed.json'} to try again)", failed["code"]
        )
    summary = read_json(path / "summary.json")
    # Killed between the summary and the report, it still lacks that
    if summary.get("status") != "finished" or not (path / "report.html").exists():
        return None
    refuse_other(recorded_identity(summary), identity(config, batch, config.model.num_classes or None), path)
    if summary.get("length") != length_asked(config):
        return None
    return f"run {path} is finished: {summary['steps']} steps, top1 {summary['top1']:.2f} %; nothing to do"


def length_asked(config: Config) -> dict[str, int | None]:
    """The length of the run as the settings put it."""
    return {"epochs": config.epochs, "max_steps": config.max_steps}


class RunDirectory:
    """The run directory as rank 0 sees it, the only process that writes it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.path = Path(config.run.dir)
        self.checkpoints = self.path / "checkpoints"
        self.lease = Lease(self.path)
        self._reports: list[str] = []

    def start(self, wanted: dict[str, Any]) -> checkpoint.Found | None:
        """Enter the directory, and find the checkpoint to resume from; raises UserError where it is another run's.

        `wanted` is this run's identity.
        """
        self.enter()
        found, reports = self.find_checkpoint()
        for text in reports:
            print(text, flush=True)
        if found:
            refuse_other(recorded_identity(found.meta), wanted, self.path)
        return found

    def enter(self) -> None:
        """Take the directory's lease, and move aside what `resume: never` found; raises UserError and StorageError."""
        try:
            retried(lambda: self.path.mkdir(parents=True, exist_ok=True), self.path)
            retry = is_retry(self.config)
            self._reports = self.lease.take(self.checkpoints)
            if self.config.resume == "never" and not retry:
                self._move_aside()
            for path in (self.path / "failed.json", self.path / "summary.json"):
                retried(lambda path=path: path.unlink(missing_ok=True), path)  # type: ignore[misc]
            text = yaml.safe_dump(as_tree(self.config), sort_keys=False)
            write_atomically(self.path / "config.yaml", text.encode())
        except OSError as error:
            raise starts.unwritable(self.path, error) from error

    def find_checkpoint(self) -> tuple[checkpoint.Found | None, list[str]]:
        """The checkpoint to resume from, and messages about damaged ones; raises UserError and StorageError."""
        if self.config.resume in ("auto", "never") or is_retry_of_path(self.config, self.path):
            found, reports = checkpoint.newest(self.checkpoints)
            if found is None:
                self._refuse_to_begin_again(reports)
            return found, self._reports + reports
        found = checkpoint.at(Path(self.config.resume))
        for path in checkpoint.steps(self.checkpoints):
            if int(path.name[5:]) > found.step and path.resolve() != found.path.resolve():
                path.rename(path.with_name(f"left-{path.name}"))
        return found, self._reports

    @property
    def holder(self) -> str:
        """The name under which this process holds the lease."""
        return self.lease.holder

    def lost(self, every: float = 0.0) -> bool:
        """Whether another process has taken the lease; reads the file at most every few seconds."""
        return self.lease.lost(every)

    def held(self) -> bool:
        """Whether this process still has the lease; asked on any thread, right before something is written."""
        return self.lease.held()

    def release(self, stopped: bool = False) -> None:
        """Release the lease; a run that was stopped from outside has not used up a restart."""
        self.lease.release()
        if stopped:
            starts.stopped(self.config)

    def _refuse_to_begin_again(self, reports: list[str]) -> None:
        """Raise UserError where this run had a checkpoint: its steps are not thrown away without being told to."""
        aside, seen = checkpoint.damaged(self.checkpoints), starts.saw_checkpoint(self.config)
        if not aside and not seen:
            return
        lost = f"{', '.join(path.name for path in aside)} cannot be used" if aside else f"{seen} is gone"
        raise UserError(
            f"{self.checkpoints} has no checkpoint to resume from, and this run had one ({lost}); it does not begin "
            f"again at step 0 by itself. {''.join(f'{report}. ' for report in reports)}Restore one from a backup or "
            "snapshot of the claim, give this run another name (run.dir, on a cluster training.name), or set resume "
            "to never, which moves this one to previous/ and begins again"
        )

    def _move_aside(self) -> None:
        found = [entry for entry in entries(self.path) if entry.name not in KEPT]
        if not found:
            return
        number = len(list((self.path / "previous").glob("*"))) + 1
        target = self.path / "previous" / f"{number:03d}"
        target.mkdir(parents=True)
        for entry in found:
            entry.rename(target / entry.name)
        sync_folder(self.path)
        starts.forget(self.config)


def is_retry_of_path(config: Config, path: Path) -> bool:
    """Whether a run that began from a named checkpoint has written its own since, and resumes from that."""
    return is_retry(config) and bool(checkpoint.steps(path / "checkpoints"))


def record_failure(config: Config, message: str, code: int, details: dict[str, Any]) -> None:
    """Record a permanent failure, so that retries of the same job end at once."""
    path = Path(config.run.dir)
    # A full disk, or no directory at all: the message itself is what counts
    with contextlib.suppress(OSError, ExitError):
        entry = {"code": int(code), "message": message, "job": job_name(), "fingerprint": fingerprint(config)}
        write_json(path / "failed.json", {**entry, "time": time.time(), **details})
