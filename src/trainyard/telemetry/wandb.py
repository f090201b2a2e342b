"""Weights & Biases, from rank 0 only; a restart continues the same curve.

A server that cannot be reached, or any other fault of W&B, costs a run its curve there for a while, never itself: what
could not be sent lies in the run directory's wandb/, and `wandb sync` sends it.
"""

import contextlib
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.config.sections.running import WandbSettings
from trainyard.core.exits import ExitError
from trainyard.core.files import peek_json
from trainyard.core.storage import storage
from trainyard.telemetry.metrics import Event, numbers

# W&B refuses run ids with these characters, and longer ones.
REFUSED, LONGEST = re.compile(r"[:;,#?/%'\\\s]"), 64
INIT_SECONDS = 30.0  # for the server's first answer
FINISH_SECONDS = 60.0  # that a run which has ended waits for its last numbers to be taken
log = logging.getLogger("trainyard")


def find_key() -> str | None:
    """Return the API key, from the environment or from the mounted secret."""
    if key := os.environ.get("WANDB_API_KEY"):
        return key
    folder = Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets"))
    with contextlib.suppress(OSError):
        return (folder / "wandb" / "WANDB_API_KEY").read_text().strip() or None
    return None


def run_id(name: str, owner: str = "") -> str:
    """Make the id of a run: its name, as far as W&B takes it, and a mark of its release, if there is one.

    Releases of several namespaces may report runs of one name to one project.
    """
    mark = f"-{hashlib.sha256(owner.encode()).hexdigest()[:8]}" if owner else ""
    return f"{REFUSED.sub('-', name)[len(mark) - LONGEST :]}{mark}"


def keep_id(path: Path, name: str, owner: str) -> str:
    """Return the id of a run directory, which is kept there (wandb.json): any restart continues the same curve.

    Another name is another run. One that was begun by a version that kept no id has its name alone. Raises OSError.
    """
    kept = peek_json(path / "wandb.json")
    known = kept.get("id")
    if kept.get("name") == name and isinstance(known, str) and known:
        return known
    begun = not kept and (path / "metrics.jsonl").exists()
    found = run_id(name, "" if begun else owner)
    with contextlib.suppress(OSError, ExitError):
        storage.write_json(path / "wandb.json", {"name": name, "id": found})
    return found


def start(
    section: WandbSettings,
    settings: Mapping[str, Any],
    *,
    directory: str,
    name: str,
    say: Callable[[str], None] = print,
    owner: str = "",
) -> Any | None:
    """Start reporting, if it is asked for; offline where the server does not answer in half a minute.

    `settings` are all of the run, `directory` is run.dir, `owner` the release that the run belongs to. None where that
    fails too: no fault of W&B's ends a run.
    """
    key = find_key()
    mode: Any = {"auto": "online" if key else "off"}.get(section.mode, section.mode)
    if mode == "off":
        return None
    if key:
        os.environ["WANDB_API_KEY"] = key
    try:
        import wandb
    except Exception as error:
        say(f"Weights & Biases cannot be used ({type(error).__name__}: {error}); the run is not recorded there")
        return None

    identity = keep_id(Path(directory), name, owner)

    def begin(mode: Any) -> Any:
        asked = float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS))
        seconds = asked if mode == "online" else max(asked, INIT_SECONDS)  # no server is waited for
        return wandb.init(
            project=section.project, name=name, id=identity, resume="allow", mode=mode, dir=directory,
            config=dict(settings), settings=wandb.Settings(silent=True, init_timeout=seconds),
        )  # fmt: skip

    then = f"the run is recorded offline: wandb sync {directory}/wandb/offline-run-*"
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            return begin(attempt)
        except Exception as error:
            reason = _reason(error)
            say(f"Weights & Biases: {reason}; {then if attempt == 'online' else 'the run is not recorded there'}")
            with contextlib.suppress(Exception):
                wandb.teardown()  # it keeps the id of the run that was not begun
    return None


def _reason(error: Exception) -> str:
    """Return the first line of an error, or which settings pydantic refuses: not their values, one may be the key."""
    if isinstance(error, ValidationError):
        return f"wrong settings: {', '.join('.'.join(map(str, one['loc'])) for one in error.errors())}"
    return (str(error) or type(error).__name__).splitlines()[0]


def report(run: Any, event: Event, processes: int = 1) -> None:
    """Report the numbers of an event."""
    if shown := numbers(event, processes):
        try:
            run.log(shown, step=event["step"])
        except Exception as error:  # its service has ended, say
            log.warning("Weights & Biases took no numbers at step %s: %s", event["step"], error)


def finish(run: Any, say: Callable[[str], None], seconds: float) -> None:
    """Send what is left, in so many seconds at most: a server that is down must not hold the GPUs of an ended run."""

    def end() -> None:
        try:
            run.finish()
        except Exception as error:
            say(f"Weights & Biases did not finish ({error}): wandb sync {run.dir}/..")

    thread = threading.Thread(target=end, daemon=True, name="wandb")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        say(f"Weights & Biases took not all numbers within {seconds:.0f} s: wandb sync {run.dir}/..")
