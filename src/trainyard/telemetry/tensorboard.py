"""TensorBoard's event files, in tensorboard/ of the run directory, which `tensorboard --logdir` shows.

Each start writes them anew from metrics.jsonl, and then as it grows: no step is there twice after a resume, and what
was lost with a full disk comes back.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from trainyard.config.sections.running import TensorboardSettings
from trainyard.telemetry.metrics import Event, numbers
from trainyard.telemetry.outbox import Deliver, Outbox

NAME = "TensorBoard"
OURS = ".trainyard"  # how the names of these files end


def start(
    section: TensorboardSettings, settings: dict[str, object], path: Path, say: Callable[[str], None]
) -> Outbox | None:
    """Write event files of the run directory `path`, if they are asked for; they show all `settings`."""
    if not section.enabled:
        return None
    return Outbox(NAME, path / "metrics.jsonl", lambda: event_files(path / "tensorboard", settings), say)


@contextlib.contextmanager
def event_files(folder: Path, settings: dict[str, object]) -> Iterator[Deliver]:
    """Open a new event file, which takes the place of earlier ones with its first events.

    The settings are under TEXT. Raises ImportError, and OSError.
    """
    from tensorboardX.proto.event_pb2 import Event as Record
    from tensorboardX.proto.event_pb2 import SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter
    from tensorboardX.summary import text

    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob(f"events.out.tfevents.*{OURS}"))
    now, processes = time.time(), 1
    writer = RecordWriter(str(folder / _file_name(earlier, now)))

    def deliver(events: list[Event]) -> None:
        nonlocal processes
        for event in events:
            processes = event.get("world_size", processes)
            values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(event, processes).items()]
            if values:
                record = Record(wall_time=event["time"], step=event["step"], summary=Summary(value=values))
                writer.write(record.SerializeToString())
        writer.flush()
        while earlier:
            _empty(earlier.pop())

    try:
        writer.write(Record(wall_time=now, file_version="brain.Event:2").SerializeToString())
        # A TensorBoard that has shown the earlier files drops their steps
        writer.write(Record(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START)).SerializeToString())
        shown = text("settings", f"```yaml\n{yaml.safe_dump(settings, sort_keys=False)}```")
        writer.write(Record(wall_time=now, step=0, summary=shown).SerializeToString())
        yield deliver
    finally:
        writer.close()


def _empty(file: Path) -> None:
    """Empty a file that another replaces, and delete it next time: a TensorBoard never leaves one that has gone."""
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_size:
            os.truncate(file, 0)
        else:
            file.unlink()


def _file_name(earlier: list[Path], now: float) -> str:
    """Return a name that sorts after those of earlier files, also where this node's clock is behind."""
    seconds = int(now)
    if earlier:
        seconds = max(seconds, int(earlier[-1].name.split(".")[3]) + 1)
    return f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}{OURS}"
