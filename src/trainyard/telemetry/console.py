"""Progress for people: a live bar on a terminal, a plain line every few seconds anywhere else."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trainyard.parallel.environment import on_terminal
from trainyard.telemetry.clock import goodput
from trainyard.telemetry.metrics import FEW, Event
from trainyard.telemetry.stragglers import NOTABLE

if TYPE_CHECKING:
    from rich.progress import Progress


class Console:
    """Shows the progress of a run of `total` steps."""

    def __init__(self, total: int, steps_per_epoch: int, seconds: float) -> None:
        self._total = total
        self._per_epoch = steps_per_epoch
        self._epochs = -(-total // steps_per_epoch)
        self._seconds = seconds
        self._shown, self._classes = 0.0, FEW + 1
        self._spent: dict[str, float] = {}  # seconds by cause, of all starts
        self._first: tuple[float, int] | None = None
        self._bar: Progress | None = None
        self._task: Any = None
        if on_terminal():
            self._bar, self._task = _start_bar(total)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def show(self, event: Event) -> None:
        """Show an event of the run."""
        if event["event"] == "start":
            self._classes = event.get("classes", self._classes)
            self._spent = dict(event.get("seconds_total", {}))
        elif event["event"] == "train":
            for cause, seconds in event.get("seconds", {}).items():
                self._spent[cause] = self._spent.get(cause, 0.0) + seconds
            self._progress(event)
        elif event["event"] == "validate":
            top5 = f"top5 {event['top5']:.2f} %  " if self._classes > FEW else ""
            self.say(
                f"epoch {event['epoch']}/{self._epochs}  validated {event['samples']} samples: "
                f"top1 {event['top1']:.2f} %  {top5}loss {event['loss']:.4f}"
            )
            if cold := event.get("batch_norm_start"):
                self.say(
                    f"BatchNorm's averages still hold {100 * cold:.0f} % of their first values after {event['step']} "
                    "steps: this validation shows less than the model has learnt"
                )

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _progress(self, event: Event) -> None:
        now, step = time.monotonic(), int(event["step"])
        first = self._first = self._first or (now, step)
        rate = f"{event['images_per_second']:,.0f} img/s"
        slow = _slowest(event)
        if self._bar is not None:
            text = f"epoch {event['epoch']}/{self._epochs}  loss {event['loss']:.4f}  {rate}{slow}"
            self._bar.update(self._task, completed=step, description=text)
            return
        if now - self._shown < self._seconds and step not in (1, self._total):
            return
        self._shown = now
        left = (now - first[0]) / (step - first[1]) * (self._total - step) if step > first[1] else None
        eta = f"  eta {timedelta(seconds=round(left))}" if left is not None else ""
        good = f"  goodput {100 * goodput(self._spent):.0f} %" if self._spent else ""
        width = len(str(self._total))
        self.say(
            f"step {step:>{width}}/{self._total}  epoch {event['epoch']}/{self._epochs}  loss {event['loss']:.4f}  "
            f"lr {event['lr']:.4g}  {rate}{good}{eta}{slow}"
        )


def _slowest(event: Event) -> str:
    """Return a note on a slow network, or on the slowest rank, where it delays the others by much."""
    if times := event.get("slow_network"):
        return f"  network: steps take {times:g} times as long as before, by communication on every rank"
    slow = event.get("slowest")
    if not slow or slow["behind"] <= NOTABLE:
        return ""
    return f"  slowest rank {slow['rank']}: {100 * slow['behind']:.0f} % of the time, by {slow['cause']}"


def _start_bar(total: int) -> "tuple[Progress, Any]":
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=RichConsole(soft_wrap=True))
    task = bar.add_task("starting", total=total)
    bar.start()
    return bar, task
