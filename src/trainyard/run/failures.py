"""The record of a failed run, and its exit code: the table of `exits.CAUSES`, applied to a run."""

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.config.sections.data import DataSettings
from trainyard.config.sections.running import RunSettings
from trainyard.core.exits import INPUTS, Cause, Exit, ExitError, UserError, cause_of, too_many_files
from trainyard.parallel.environment import Place
from trainyard.parallel.memory import others_hold
from trainyard.run import input_files, starts
from trainyard.run.directory import record_failure
from trainyard.run.owner import TakenOverError, of_another_job
from trainyard.run.space import no_space

log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Attempt:
    """One process's start of a run, as far as its failures are concerned."""

    run: RunSettings
    fingerprint: str  # of all settings
    place: Place
    share: int  # most samples of a process in a step
    micro: int  # batch.micro
    validated: int  # validate.batch
    data: DataSettings
    read: Sequence[Path] = ()  # files and folders (`input_files.paths`)


@contextlib.contextmanager
def explain_errors(attempt: Attempt) -> Iterator[None]:
    """Turn any error into one that has its exit code, and record it: for retries, or so that there are none."""
    try:
        yield
    except (UserError, ExitError) as error:
        record(attempt, error)
        raise
    except Exception as caught:
        log.exception("failed")
        found = find_assert(caught)
        meant = meaning(attempt, found)
        if meant is None and found is caught:
            raise
        if meant is None:
            raise found from caught
        record(attempt, meant)
        raise meant from caught


def meaning(attempt: Attempt, error: Exception) -> UserError | ExitError | None:
    """Return what an error means for this run; None: it is a bug, and stays as it is."""
    run, rank = attempt.run, attempt.place.rank
    cause, text = cause_of(error), f"{type(error).__name__}: {error}"
    if cause.name in ("memory", "host"):
        return explain_memory(attempt, error, cause)
    if cause.name == "full" and isinstance(error, OSError):
        return ExitError(f"rank {rank}: {no_space(error, Path(run.dir))}", cause.code)
    if cause.code == Exit.CONFIG:
        named = f"rank {rank}: {cause.means}: {text}"
        return too_many_files(f"rank {rank}: {text}") if cause.name == "files" else UserError(named)
    if cause.code >= 128:
        return ExitError(f"rank {rank}: {cause.means}: {text}", cause.code)
    where = _where(error)
    if cause.name == "unknown" and starts.may_try_again(run, where):
        traceback.print_exception(error)
        return ExitError(f"{text} (tried once more: the next start tells whether it is a bug)", Exit.CRASHED,
                         {"where": where})  # fmt: skip
    return None


def find_assert(error: Exception, wait: Callable[[], None] | None = None) -> Exception:
    """Return the assert of a kernel behind an error of a library, which is the first to notice it; else the same error.

    Once a kernel has asserted, CUDA answers every wait for the GPU with that; `wait` is torch.cuda.synchronize.
    """
    if cause_of(error).name != "device":
        return error
    if wait is None:
        import torch

        wait = torch.cuda.synchronize
    try:
        wait()
    except Exception as found:
        if cause_of(found).name == "assertion":
            return found.with_traceback(error.__traceback__)
    return error


def record(attempt: Attempt, error: UserError | ExitError) -> None:
    """Record a failure in the run directory, unless that is another job's by now."""
    path, code = Path(attempt.run.dir), Exit.CONFIG if isinstance(error, UserError) else error.code
    if isinstance(error, TakenOverError) or code == Exit.STOPPED or of_another_job(path):
        return
    details = {} if isinstance(error, UserError) else error.details
    if code == Exit.CONFIG:
        details = {**details, INPUTS: input_files.state(attempt.read, str(error))}
        record_failure(path, attempt.fingerprint, str(error), code, details)
    elif code >= 128:
        starts.remember(path, str(error), code, str(details.get("where", "")))


def _where(error: Exception) -> str:
    """Return the kind of an error, and the innermost call that it came from."""
    calls = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {calls[-1].filename}:{calls[-1].lineno}" if calls else type(error).__name__


PARTS = {"next_step": "step", "validate": "validation", "save": "checkpoint"}  # of trainyard.training.loop


def explain_memory(attempt: Attempt, error: Exception, cause: Cause) -> UserError | ExitError:
    """Explain that memory is too small: another try helps where it was enough before, or is another's now.

    Where these settings have done the same part of a run before, it is fragmented or shared; run.max_restarts bounds
    the tries. At its first time it is the settings' fault.
    """
    rank, world = attempt.place.rank, attempt.place.world
    part, what = part_of(error), (str(error) or type(error).__name__).splitlines()[0]
    used = "" if cause.name == "host" else used_by_others()
    if part and part in starts.fits(Path(attempt.run.dir), attempt.fingerprint, world):
        return ExitError(
            f"rank {rank}: {cause.means} in a {part}, for which it was enough before with these settings "
            f"({what}){used}",
            Exit.DEVICE,
        )
    if used:
        return ExitError(f"rank {rank}: {cause.means} ({what}){used}", Exit.DEVICE)
    return UserError(f"rank {rank}: {cause.means} ({what}); {_advise(attempt, cause)}")


def part_of(error: Exception) -> str:
    """Return the innermost part of a run that an error comes from: step, validation, checkpoint; empty for another."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    calls = [frame.f_code.co_name for frame in frames if frame.f_globals.get("__name__") == "trainyard.training.loop"]
    return next((PARTS[name] for name in reversed(calls) if name in PARTS), "")


def used_by_others() -> str:
    """Say how much of this process's GPU other processes hold; empty if little, or not known."""
    import torch

    try:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return ""
        free, total = torch.cuda.mem_get_info()
        said = others_hold(free, total, torch.cuda.memory_reserved())
        return f"; {said}" if said else ""
    except Exception:  # a GPU that has just failed
        return ""


def _advise(attempt: Attempt, cause: Cause) -> str:
    """Name the keys that decide how much memory is needed."""
    if cause.name == "host":
        data = attempt.data
        return (
            f"batches that are prepared lie in it: lower data.prefetch = {data.prefetch} or data.readahead = "
            f"{data.readahead}, or raise the pod's resources.limits.memory"
        )
    micro = attempt.micro
    most = min(micro, attempt.share) if micro else attempt.share
    limit = "" if micro else ", no limit"
    return (
        f"batch.micro = {micro}{limit}, so a forward takes {most} samples: set batch.micro to {max(1, most // 2)} or "
        f"less; a validation takes validate.batch = {attempt.validated} at a time"
    )
