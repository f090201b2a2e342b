"""Changes in torch's agent and rendezvous, through names that torch does not promise to keep.

Each change first looks whether this torch has what it replaces. If not, it changes nothing, and a warning tells what
follows from that.
"""

import contextlib
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

from trainyard.core import interrupts
from trainyard.core.exits import CURED_BY_RETRY, Exit, empty_termination_message, may_pass_in_place
from trainyard.core.variables import SPARES, read_number
from trainyard.pod import process
from trainyard.pod.presence import Listener

UNHURRIED = 7 * 86400  # seconds; a person who waits no longer presses Ctrl-C again
UNHURRIED_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # of a terminal


class UnneededError(Exception):
    """The others ended their rendezvous while this pod waited in it to take the place of a lost one."""


def adapt(grace: float, told_to_end: set[int]) -> None:
    """Make all changes that every start needs; `grace` and `told_to_end` are those of give_children."""
    restart_what_may_pass()
    leave_others_open()
    tell_unneeded_spares()
    leave_full_groups_alone()
    order_by_number()
    give_children(grace, told_to_end)


def give_children(seconds: float, told_to_end: set[int]) -> None:
    """Let torch's agent wait `seconds` after SIGTERM, wherever it stops its children, before it sends SIGKILL.

    Those that still ran are added to `told_to_end`: if they must be killed, that says nothing of why the run ended.
    At SIGINT and SIGHUP they get SIGTERM: they have sessions of their own, so what happens at a terminal reaches this
    process alone.
    """
    from torch.distributed.elastic.multiprocessing import PContext

    original = PContext.close
    if not takes(original, "self", "death_sig", "timeout") or not takes(PContext.start, "self"):
        unknown("processes that are stopped get 30 s, whatever TRAINYARD_GRACE_SECONDS says")
        return

    def close(self: Any, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        running = [pid for pid in self.pids().values() if _runs(pid)]
        told_to_end.update(running)
        process.signal_all(running, signal.SIGCONT)  # one that was stopped would take no signal but SIGKILL
        if death_sig in UNHURRIED_SIGNALS:
            original(self, signal.SIGTERM, UNHURRIED)
        else:
            original(self, death_sig, int(seconds))

    PContext.close = close  # type: ignore[method-assign]
    heed_terminal(PContext)


def heed_terminal(context: Any) -> None:
    """Have torch's agent end its processes at a first SIGINT or SIGHUP, and kill them at a second SIGINT.

    `context` is its PContext, which handles both once it starts. Under nohup SIGHUP stays ignored.
    """
    begin = context.start

    def start(self: Any) -> None:
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        begin(self)
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ends: Any = signal.getsignal(signal.SIGHUP)
        interrupts.stop_at_hangup(ends)
        raises: Any = signal.getsignal(signal.SIGINT)

        def on_interrupt(number: int, frame: Any) -> None:
            # In the handler: the same Ctrl-C a second time must not end the wait that the first one begins
            interrupts.end_at_second(lambda: kill(self.pids().values()))
            raises(number, frame)

        if callable(raises):
            signal.signal(signal.SIGINT, on_interrupt)

    context.start = start


def kill(pids: Iterable[int]) -> None:
    """Kill those of these children that still run, with the processes that they have started."""
    for pid in filter(_runs, pids):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def restart_what_may_pass() -> None:
    """Keep torch's agent from restarting processes in place where the failure would come back.

    The kubelet's note of a failure is emptied once the processes have been restarted: the next one writes its own.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    original: Any = getattr(LocalElasticAgent, "_monitor_workers", None)
    if not takes(original, "self", "worker_group"):
        unknown("--max-restarts restarts failures that do not pass, such as wrong settings (2), too")
        return
    failed = False

    def monitor(self: Any, group: Any) -> Any:
        nonlocal failed
        result = original(self, group)
        if not all(may_pass_in_place(failure.exitcode) for failure in result.failures.values()):
            self._remaining_restarts = 0
        if failed and not result.failures:
            empty_termination_message()
        failed = bool(result.failures)
        return result

    LocalElasticAgent._monitor_workers = monitor  # type: ignore[method-assign]


def leave_others_open() -> None:
    """Keep torch's agent from closing the rendezvous of the others where this pod alone ends.

    That is where it has lost them, or a GPU of it has failed and they can go on without it. What is closed stays
    closed: spare pods would end at once, again and again, and the next failure would recreate all pods.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.rendezvous import RendezvousError

    original: Any = getattr(LocalElasticAgent, "run", None)
    if not takes(original, "self", "role"):
        unknown("a pod that loses the others may end their rendezvous")
        return

    def run(self: Any, *role: str) -> Any:
        handler = self._worker_group.spec.rdzv_handler
        try:
            result = original(self, *role)
        except RendezvousError:
            handler.shutdown = lambda: True
            raise
        codes = [failure.exitcode for failure in result.failures.values()] if result else []
        if Exit.DEVICE in codes and all(code < 0 or code >= CURED_BY_RETRY for code in codes) and may_lack_one(handler):
            handler.shutdown = lambda: True
        return result

    LocalElasticAgent.run = run  # type: ignore[method-assign]


def may_lack_one(handler: Any) -> bool:
    """Whether the others can go on without this pod: a spare one takes its place, or fewer are enough."""
    settings = getattr(handler, "_settings", None)
    fewer = settings is not None and settings.min_nodes < settings.max_nodes
    return fewer or read_number(SPARES) > 0


def tell_unneeded_spares() -> None:
    """Have torch's agent raise UnneededError in a spare pod; its own way to end one fails with an AttributeError."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    original: Any = getattr(LocalElasticAgent, "run", None)
    if not takes(original, "self", "role"):
        unknown("a spare pod ends with a traceback when the run does")
        return

    def run(self: Any, *role: str) -> Any:
        result = original(self, *role)
        if result is None:
            raise UnneededError("the run has ended on the others")
        return result

    LocalElasticAgent.run = run  # type: ignore[method-assign]


def leave_full_groups_alone() -> None:
    """Keep torch's agent from restarting its processes for pods that wait while there is no place for them.

    Of two pods that wait for one place the second stays on torch's list, and its agent would restart all again and
    again.
    """
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    original: Any = getattr(DynamicRendezvousHandler, "num_nodes_waiting", None)
    if not takes(original, "self"):
        unknown("processes may be restarted again and again while more pods wait than are lost")
        return

    def waiting(self: Any) -> int:
        found: int = original(self)
        full = len(self._state_holder.state.participants) >= self._settings.max_nodes
        return 0 if full else found

    DynamicRendezvousHandler.num_nodes_waiting = waiting  # type: ignore[method-assign]


def order_by_number() -> None:
    """Have torch's rendezvous number pods in their order, run-node-2 before run-node-10; torch sorts them as text.

    Neighbours in the job are then neighbours in rings, and rank N is where the numbers of pods say.
    """
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc

    if not takes(getattr(_NodeDesc, "__lt__", None), "self", "other"):
        unknown("of more than ten pods, rank N may run in another pod than the one of that number")
        return

    def key(node: Any) -> list[tuple[int, str]]:
        words = re.split(r"(\d+)", node.addr)
        return [(int(word), "") if word.isdigit() else (-1, word) for word in words]

    def before(self: Any, other: Any) -> bool:
        return (key(self), self.pid, self.local_id) < (key(other), other.pid, other.local_id)

    _NodeDesc.__lt__ = before  # type: ignore[method-assign]


def tell_peers_who_trains(listening: Listener) -> None:
    """Have this pod tell those that ask whether its group trains, so that a pod that fails knows if it is needed."""
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    original: Any = getattr(DynamicRendezvousHandler, "next_rendezvous", None)
    if not takes(original, "self"):
        unknown("a spare pod that fails for good fails the job")
        return

    def meet(self: Any) -> Any:
        listening.state = "loaded"
        group = original(self)
        listening.state = "trains"
        return group

    DynamicRendezvousHandler.next_rendezvous = meet  # type: ignore[method-assign]


def takes(method: Any, *parameters: str) -> bool:
    """Whether a method of torch's, which is none of its interface, has the parameters that it is known to have."""
    return callable(method) and tuple(inspect.signature(method).parameters) == parameters


def unknown(consequence: str) -> None:
    """Say that this torch's launcher is another one than is known here, and what follows from that."""
    import torch

    print(f"warning: torch {torch.__version__} has another launcher than is known here: {consequence}", file=sys.stderr)


def _runs(pid: int) -> bool:
    """Whether a child still runs; it is not reaped by this."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False
