"""What a failed run leaves behind, and the code that it ends with: the table of `exits.CAUSES`, applied to a run."""

import contextlib
import logging
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.config.sections.running import RunSettings
from trainyard.core.exits import Exit, ExitError, UserError, cause_of, too_many_files
from trainyard.parallel.environment import Place
from trainyard.run import starts
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


@contextlib.contextmanager
def explain_errors(attempt: Attempt) -> Iterator[None]:
    """Turn any error into one that has its exit code, and record it: for retries, or so that there are none."""
    try:
        yield
    except (UserError, ExitError) as error:
        record(attempt, error)
        raise
    except Exception as error:
        log.exception("failed")
        meant = meaning(attempt, error)
        if meant is None:
            raise
        record(attempt, meant)
        raise meant from error


def meaning(attempt: Attempt, error: Exception) -> UserError | ExitError | None:
    """Return what an error means for this run; None: it is a bug, and stays as it is."""
    run, rank = attempt.run, attempt.place.rank
    cause, text = cause_of(error), f"{type(error).__name__}: {error}"
    if cause.name == "memory":
        return UserError(_memory(attempt, error))
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


def record(attempt: Attempt, error: UserError | ExitError) -> None:
    """Record a failure in the run directory, unless that is another job's by now."""
    path, code = Path(attempt.run.dir), Exit.CONFIG if isinstance(error, UserError) else error.code
    if isinstance(error, TakenOverError) or code == Exit.STOPPED or of_another_job(path):
        return
    if code == Exit.CONFIG:
        details = {} if isinstance(error, UserError) else error.details
        record_failure(path, attempt.fingerprint, str(error), code, details)
    elif code >= 128:
        details = {} if isinstance(error, UserError) else error.details
        starts.remember(path, str(error), code, str(details.get("where", "")))


def _where(error: Exception) -> str:
    """Return the kind of an error, and the innermost call that it came from."""
    calls = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {calls[-1].filename}:{calls[-1].lineno}" if calls else type(error).__name__


def _memory(attempt: Attempt, error: Exception) -> str:
    """Explain that a GPU's memory is too small, with the keys that decide how much is needed."""
    micro, rank = attempt.micro, attempt.place.rank
    most = min(micro, attempt.share) if micro else attempt.share
    limit = "" if micro else ", no limit"
    return (
        f"rank {rank}: the GPU's memory is too small ({str(error).splitlines()[0]}); batch.micro = {micro}{limit}"
        f", so a forward takes {most} samples: set batch.micro to {max(1, most // 2)} or less; "
        f"a validation takes validate.batch = {attempt.validated} at a time"
    )
