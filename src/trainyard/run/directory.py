"""The run directory: whether its run is over, and what it resumes from.

leases/         the process that may write here, and what it is about to publish (lease.py); lease.json is for people
restarts/       restarts since the last new checkpoint (starts.py)
failed.json     why the run ended for good; a retry of the same job and settings ends at once with the same message,
                while the files that the run reads are as they were
resumed.json    the checkpoint that `resume` names, once the run has begun from it
previous/       what `resume: never` found here
compiled/       what torch.compile made, with model.compile_cache; it fits any run

A start looks here at three moments: every process before it loads torch (`check_ended`), rank 0 when it counts the
start (`starts.count`), and rank 0 with the lease (`RunDirectory.start`). What was read at one is not used at the next:
before this process has the lease, another job may write here.
"""

import contextlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainyard.config.sections.learning import ModelSettings, OptimizerSettings
from trainyard.config.sections.running import RunSettings
from trainyard.core.exits import INPUTS, Exit, ExitError, UserError
from trainyard.core.files import fits, rename, section, sync_folder
from trainyard.core.named import current
from trainyard.core.storage import storage, unreadable
from trainyard.parallel.environment import restart_count
from trainyard.run import checkpoint, fence, input_files, starts
from trainyard.run import lease_files as calls
from trainyard.run.lease import Lease
from trainyard.run.owner import TakenOverError, find_newest, job_name, of_another_job, refuse_strangers_of
from trainyard.run.space import unwritable

COMPILED = "compiled"
KEPT = ("lease.json", "leases", "previous", "restarts", COMPILED)
SUMMARY = {"steps": (int,), "top1": (int, float)}  # what is said of a finished run
PREVIOUS = re.compile("[0-9]{3,9}")
MOVING = ".moving"  # in previous/: a run that is being moved there


def identity(
    model: ModelSettings,
    optimizer: OptimizerSettings,
    seed: int,
    *,
    batch: int,
    classes: int | None = None,
    samples: int | None = None,
) -> dict[str, Any]:
    """Return what must stay the same for a run to be resumed; None is not known.

    Another optimizer would find no moments that it can use, another `no_decay` or `freeze` trains other parameters or
    differently, weights that were trained with blur pooling compute something else without it, and another seed or
    number of training samples changes the order of the samples.
    """
    return {
        "model.name": model.name,
        "model.num_classes": classes,
        "model.freeze": sorted(model.frozen),
        "model.blur_pool": model.blur_pool,
        "batch.global": batch,
        "seed": seed,
        "optimizer.name": optimizer.name,
        "optimizer.no_decay": sorted(optimizer.no_decay),
        "data.samples": samples,
    }


def read_identity(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Read the identity that a checkpoint or a summary recorded; older ones have a part of it in their settings."""
    config = section(meta, "config")
    optimizer = section(config, "optimizer")
    spared = optimizer.get("no_decay")
    found = {
        "model.blur_pool": "none" if config else None,
        "seed": config.get("seed"),
        "optimizer.name": optimizer.get("name"),
        "optimizer.no_decay": sorted(map(str, spared)) if isinstance(spared, list) else None,
    }
    found = {**found, **section(meta, "identity")}
    model = found.get("model.name")
    return {**found, "model.name": current(model)} if isinstance(model, str) else found


def refuse_other(found: Mapping[str, Any], wanted: Mapping[str, Any], where: Path) -> None:
    """Raise UserError where a recorded identity is another run's; what either does not know is not compared."""
    for key, value in wanted.items():
        if value is not None and found.get(key) is not None and found[key] != value:
            raise UserError(
                f"{key} = {value!r}, but {where} holds a run with {found[key]!r}; give this run another name "
                "(run.dir, on a cluster training.name), or set resume to never"
            )


def is_retry(path: Path) -> bool:
    """Whether this process continues what the same job began, rather than beginning something.

    Raises UserError and StorageError.
    """
    job = job_name()
    if restart_count() > 0 or not job:
        return restart_count() > 0
    try:
        newest = storage.perform(path, find_newest, path)
    except OSError as error:
        raise unreadable(path / fence.FOLDER, error) from error
    return newest is not None and newest.job == job and newest.entered


def check_ended(
    run: RunSettings,
    resume: str,
    *,
    fingerprint: str,
    wanted: Mapping[str, Any],
    length: Mapping[str, Any],
    read: Sequence[Path] = (),
) -> str | None:
    """Say so if the run is finished; raises ExitError if it failed permanently. Every process asks this first.

    `fingerprint` is that of all settings, `wanted` this run's identity, `length` what `requested_length` gives, `read`
    what the run reads (`input_files.paths`). Raises StrangerError where the directory is another release's.
    """
    path = Path(run.dir)
    try:
        storage.perform(path, refuse_strangers_of, path, run.adopt)
    except OSError as error:
        raise unreadable(path / fence.FOLDER, error) from error
    if resume == "never" and not is_retry(path):
        return None
    failed = storage.read_json(path / "failed.json")
    # A user often fixes wrong input outside the settings, so only an automatic retry of the same job is refused.
    by_machine = job_name() or restart_count() > 0
    permanent = failed.get("code") == Exit.NAN or (failed.get("code") == Exit.CONFIG and by_machine)
    same = failed.get("fingerprint") == fingerprint and failed.get("job") == job_name()
    said = str(failed.get("message"))
    if permanent and same and (INPUTS not in failed or failed[INPUTS] == input_files.state(read, said)):
        raise ExitError(f"{said} (an earlier try; remove {path / 'failed.json'} to try again)", failed["code"])
    summary = storage.read_json(path / "summary.json")
    # Its report failed, or was removed: it is written again
    if summary.get("status") != "finished" or not storage.exists(path / "report.html"):
        return None
    if not fits(summary, SUMMARY) or not SUMMARY.keys() <= summary.keys():
        return None  # it resumes from its last step, and writes a whole one
    refuse_other(read_identity(summary), wanted, path)
    if summary.get("length") != length:
        return None
    return f"run {path} is finished: {summary['steps']} steps, top1 {summary['top1']:.2f} %; nothing to do"


def requested_length(epochs: int | None, max_steps: int | None) -> dict[str, int | None]:
    """Return the length of the run as the settings put it."""
    return {"epochs": epochs, "max_steps": max_steps}


class RunDirectory:
    """The run directory as rank 0 sees it, the only process that writes it."""

    def __init__(self, run: RunSettings, resume: str, settings: Mapping[str, Any]) -> None:
        """`resume` and the section `run` say what is done with it; all `settings` are written to config.yaml."""
        self._run, self._resume, self._settings = run, resume, settings
        self.path = Path(run.dir)
        self.checkpoints = self.path / "checkpoints"
        self.lease = Lease(self.path, run.adopt, self._begins_anew)
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
            where = self.path if found.path.parent == self.checkpoints else found.path
            refuse_other(read_identity(found.meta), wanted, where)
        with self.fenced():
            storage.perform(self.path, self._forget_the_end)
        return found

    def enter(self) -> None:
        """Take the directory's lease, and move aside what `resume: never` found; raises UserError and StorageError."""
        try:
            storage.make_folder(self.path)
            self._reports = storage.perform(self.path, self.lease.take, self.checkpoints)
            # As the lease says that this one follows: by a look before that, another process may have come meanwhile
            retry = restart_count() > 0 or self.lease.continued
            with self.fenced():
                # As a whole: each of its steps can be repeated, and finds what the one before has done
                storage.perform(self.path, self._settle, always=self._resume == "never" and not retry)
                text = yaml.safe_dump(self._settings, sort_keys=False)
                storage.write_file(self.path / "config.yaml", text.encode(), via=self.staging)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _begins_anew(self) -> bool:
        """Whether a newer job's run would be set aside rather than continued; raises UserError and StorageError."""
        if self._resume in ("auto", "never"):
            return self._resume == "never"
        return starts.begun_from(self.path, self._resume) is None

    def _settle(self, always: bool) -> None:
        """Make the directory this job's, which has taken its lease; raises OSError."""
        self._move_aside(always)
        self.lease.enter()
        checkpoint.tidy(self.checkpoints, self._run.keep_aside)

    def find_checkpoint(self) -> tuple[checkpoint.Found | None, list[str]]:
        """Return the checkpoint to resume from, and messages about others; raises UserError and StorageError."""
        if self._resume not in ("auto", "never"):
            found, reports = self._find_named()
            return found, self._reports + reports
        with self.fenced():
            newest, reports = checkpoint.newest(self.checkpoints, self.staging)
        if newest is None:
            aside = checkpoint.list_damaged(self.checkpoints)
            self._refuse_to_begin_again("at step 0", 0, aside, reports)
        return newest, self._reports + reports

    def _find_named(self) -> tuple[checkpoint.Found, list[str]]:
        """Return the checkpoint that `resume` names or, once the run has begun from that, its own newest one."""
        begun = starts.begun_from(self.path, self._resume)
        if begun is None:
            return checkpoint.at(Path(self._resume)), []
        with self.fenced():
            own, reports = checkpoint.newest(self.checkpoints, self.staging, after=begun)
        if own:
            return own, [
                *reports,
                f"resume = {self._resume!r}: this run has begun from it before, and resumes from its own "
                f"{own.path.name}; to begin from it again, remove {self.path / starts.RESUMED}",
            ]
        self._refuse_to_begin_again(f"from resume = {self._resume!r}", begun, [], reports)
        return checkpoint.at(Path(self._resume)), reports

    def _leave_later(self, found: checkpoint.Found) -> None:
        """Set checkpoints of this run aside that are later than the one it resumes from, and say so."""
        for path in checkpoint.steps(self.checkpoints):
            if int(path.name[5:]) > found.step and path.resolve() != found.path.resolve():
                aside = fence.set_aside(calls, path, "left", self.staging)
                print(f"resume = {self._resume!r}: the later {path.name} is set aside as {aside.name}", flush=True)

    def note_begun(self, found: checkpoint.Found | None) -> None:
        """Note that the run has begun from the checkpoint that `resume` names, once its records begin there.

        Later ones that it has are set aside then, so that a start which is refused leaves them, and its own ones count
        from then on. Another `resume` ends that. Raises TakenOverError, OSError, StorageError and UserError.
        """
        note = self.path / starts.RESUMED
        with self.fenced():
            if self._resume in ("auto", "never"):
                if storage.exists(note):
                    storage.perform(note, rename, note, self.staging / note.name)
            elif found and starts.begun_from(self.path, self._resume) is None:
                if not self.held():
                    raise TakenOverError(self.lease.taken_message())
                self._leave_later(found)
                storage.perform(self.path, starts.forget_checkpoints, self.path)  # the later ones that were seen
                storage.write_json(note, {"resume": self._resume, "step": found.step}, via=self.staging)

    @property
    def holder(self) -> str:
        """The name under which this process holds the lease."""
        return self.lease.holder

    @property
    def staging(self) -> Path:
        """Where files of the run directory are written before they take their names; it goes with the lease."""
        return self.lease.folder

    def lost(self) -> bool:
        """Whether another process is known to have taken the lease; asks nobody."""
        return self.lease.lost()

    def held(self) -> bool:
        """Whether this process still has the lease, as the storage says; asked on any thread."""
        return self.lease.held()

    def fenced(self) -> contextlib.AbstractContextManager[None]:
        """Around what is written by way of `staging`: raises TakenOverError where the lease was lost meanwhile."""
        return self.lease.fenced()

    def release(self, stopped: bool = False) -> None:
        """Release the lease; a run that was stopped from outside has not used up a restart."""
        self.lease.release()
        if stopped:
            starts.note_stop(self.path)

    def _forget_the_end(self) -> None:
        """Remove, by way of `staging`, how the run has ended before; a start that is refused leaves it."""
        for name in ("failed.json", "summary.json"):
            if (self.path / name).exists():
                rename(self.path / name, self.staging / name)

    def _refuse_to_begin_again(self, where: str, step: int, aside: Sequence[Path], reports: Sequence[str]) -> None:
        """Raise UserError where this run had a later checkpoint: its steps are not thrown away without being told to.

        Later than `step`, where it would begin, or one that was set `aside` as damaged.
        """
        lost = starts.lost_checkpoint(self.path, after=step)
        if not (lost or aside):
            return
        had = f"{', '.join(path.name for path in aside)} cannot be used" if aside else f"{lost} is gone"
        raise UserError(
            f"{self.checkpoints} has no checkpoint to resume from, and this run had one ({had}); it does not begin "
            f"again {where} by itself. {''.join(f'{report}. ' for report in reports)}Restore one from a backup or "
            "snapshot of the claim, give this run another name (run.dir, on a cluster training.name), or set resume "
            "to never, which moves this one to previous/ and begins again"
        )

    def _move_aside(self, always: bool) -> None:
        """Move what is here to previous/, `always` or because a crash has left it half done; the oldest there go."""
        previous = self.path / "previous"
        moving = previous / MOVING
        found = sorted(entry for entry in storage.list_folder(self.path) if entry.name not in KEPT)
        if not moving.exists() and not (always and found):
            if always:
                starts.forget_checkpoints(self.path)  # what is left may be the notes of a run whose files are gone
            return
        if not moving.exists():
            # By way of the lease's folder: who has lost the lease moves nothing. A newer job ends a move that has begun
            # before it does anything else, and then the folder is gone that its files would be moved to.
            (self.staging / MOVING).mkdir(exist_ok=True)
            previous.mkdir(exist_ok=True)
            rename(self.staging / MOVING, moving)
        # Checkpoints go first: without them no start continues what is half moved
        for entry in sorted(found, key=lambda entry: entry.name != "checkpoints"):
            rename(entry, moving / entry.name)
        numbered = (path for path in storage.list_folder(previous) if PREVIOUS.fullmatch(path.name))
        older = sorted(numbered, key=lambda path: int(path.name))
        number = int(older[-1].name) + 1 if older else 1
        starts.forget_checkpoints(self.path)  # before the last rename: after a crash here the next start does it again
        rename(moving, previous / f"{number:03d}")
        for folder in (previous, self.path):  # else a crash could bring the move back once the new run has checkpoints
            sync_folder(folder)
        for path in older[: max(0, len(older) + 1 - self._run.keep_aside)]:
            shutil.rmtree(path, ignore_errors=True)


def record_failure(path: Path, fingerprint: str, message: str, code: int, details: Mapping[str, Any]) -> None:
    """Record a permanent failure, so that retries of the same job end at once; not where another job is at work."""
    if of_another_job(path):
        return
    # A full disk, no directory at all, no file that may be opened: the message itself is what counts
    with contextlib.suppress(OSError, ExitError, UserError):
        entry = {"code": int(code), "message": message, "job": job_name(), "fingerprint": fingerprint}
        storage.write_json(path / "failed.json", {**entry, "time": time.time(), **details})
