"""Opens the records of a run (metrics, checkpoints, logs) and its watchdog."""

from dataclasses import dataclass

from trainyard.config import Config
from trainyard.data.splits import Data
from trainyard.parallel.base import Strategy
from trainyard.run.checkpoint import Found
from trainyard.run.checkpoint_writer import Writer
from trainyard.run.directory import RunDirectory
from trainyard.run.recorder import Recorder
from trainyard.telemetry.clock import Clock, process_start
from trainyard.telemetry.watchdog import Watchdog


@dataclass(frozen=True)
class Records:
    """The open records of a run, and its watchdog."""

    directory: RunDirectory
    found: Found | None  # the checkpoint that this start resumes from
    writer: Writer  # of checkpoints
    recorder: Recorder
    clock: Clock
    watchdog: Watchdog


def open_records(
    config: Config, strategy: Strategy, data: Data, directory: RunDirectory, found: Found | None
) -> Records:
    """Open the records of a run directory that this run has entered; every process calls it."""
    clock = Clock(process_start())
    if strategy.first and found:
        clock.add(found.meta.get("seconds", {}))
    keep = config.checkpoint
    return Records(
        directory=directory,
        found=found,
        writer=Writer(
            directory.checkpoints,
            keep.keep_last,
            keep.keep_best,
            ours=directory.held,
            holder=directory.holder,
            staging=directory.staging,
        ),
        recorder=Recorder(config, strategy, directory, data, clock),
        clock=clock,
        watchdog=Watchdog(directory.path, strategy, config.comm.hang_seconds, directory.staging),
    )
