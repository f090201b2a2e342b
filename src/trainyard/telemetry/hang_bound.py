"""The time without progress after which a process counts as hung: the values of comm.hang_seconds.

A number of seconds holds for whatever a process does. With `auto` the bound follows from the run itself:

- a step: FACTOR times the longest step that this process has measured in this start, but at least LEAST and at most
  MOST seconds. The longest and not the mean: a step that came back shows that such a step is no hang. Until MEASURED
  steps have been measured it is MOST;
- what has no usual length gets MOST seconds: a wait for data, validation, a step in which the process compiles, reads
  or writes storage. So does a step in which another rank, which shows life, is at one of these;
- a rank that shows no sign of life ends the others' wait after SILENT seconds, where ranks have been seen to answer
  each other over the network; without that proof, after MOST seconds. Files alone prove little in less time: NFS may
  show an old one for a minute. A C function that holds Python's lock for so long also takes that sign away.

With both, the start, checkpoints, the end and whatever happens for the first time may take PATIENCE times as long
(MOST, with `auto`). So `auto` ends a run before MOST seconds have passed in two cases alone: a step of more than LEAST
seconds takes FACTOR times as long as any before it, or a rank is gone.
"""

import sys
import traceback
from dataclasses import dataclass
from typing import Literal

AUTO = "auto"
Seconds = float | Literal["auto"]  # comm.hang_seconds

MOST = 300.0
LEAST = 60.0  # a link that flaps, a switch that fails over and a machine that is moved live take less
SILENT = 20.0
FACTOR = 10.0
MEASURED = 5
PATIENCE = 6

# In the files of a thread's calls: what is running there has no usual length. The compilers may run in the thread of
# backward, storage counts only where the main thread waits for it.
COMPILES = ("/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py")
STORES = ("/trainyard/core/storage.py", "/trainyard/core/files.py", "/trainyard/run/checkpoint_writer.py")


@dataclass
class StepTimes:
    """The steps that a process has measured in this start."""

    steps: int = 0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a step that has ended."""
        self.steps += 1
        self.longest = max(self.longest, seconds)

    @property
    def bound(self) -> float:
        """Seconds that a step may take."""
        return min(MOST, max(LEAST, FACTOR * self.longest)) if self.steps >= MEASURED else MOST


def longest(seconds: Seconds) -> float:
    """Return the seconds that whatever has no bound of its own may take."""
    return MOST if seconds == AUTO else float(seconds)


def shortest(seconds: Seconds) -> float:
    """Return the seconds that a process which shows life may take at least, whatever it does."""
    return LEAST if seconds == AUTO else float(seconds)


def has_no_usual_length(main: int | None) -> bool:
    """Whether this process compiles, or its thread `main` reads or writes storage, just now."""
    for thread, frame in sys._current_frames().items():
        places = (*COMPILES, *STORES) if thread == main else COMPILES
        files = {called.f_code.co_filename for called, _ in traceback.walk_stack(frame)}
        if any(file.endswith(places) for file in files):
            return True
    return False
