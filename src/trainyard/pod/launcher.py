"""Start one process per GPU on this node, and end with the exit code that tells why they ended.

    trainyard launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

It takes torchrun's options and its PET_* variables, and differs from torchrun in these things:

- it returns the exit code of the process that failed first (torchrun always returns 1);
- it gives the processes TRAINYARD_GRACE_SECONDS to save when it is stopped;
- at Ctrl-C, and where the terminal is closed, they get SIGTERM, and as long as they need to save; a second Ctrl-C kills
  them; under nohup they go on when the terminal is closed;
- without an address it chooses a free port, so that runs on one machine do not collide;
- `--max-restarts` restarts in place only what may pass there: nothing that ends with a code below 128, and no failed
  GPU (201), for which another node may be needed; on several nodes those of all restart together, also where these are
  numbered and have the address of the first (torchrun restarts those of one, which the others do not admit);
- when it is killed, its processes end with it; torchrun leaves them running while the other nodes hang;
- it ends also when a process cannot, because storage hangs under it (process.py); torchrun waits for ever;
- it leaves no folder of torch's in /tmp when it ends (torchrun leaves one for each start);
- it shows an error that all its processes meet once, without the agent's own lines (those come with LOGLEVEL=WARNING);
- while as many pods train as may, those that wait restart nothing (torchrun restarts all again and again);
- pods that meet by a rendezvous are numbered in their order, run-node-2 before run-node-10 (torchrun sorts by letters);
- of more pods than `--nnodes` needs, those that wait for one to be lost end when the run does (torchrun fails);
- a pod that loses the others, or whose GPU fails where they can go on without it, ends alone (torchrun ends the
  rendezvous of all);
- processes record their last collectives, for the report of a hang, and leave no core dumps.
"""

import contextlib
import functools
import logging
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainyard.core import garbage, interrupts
from trainyard.core.exits import (
    LAUNCHER,
    SAID,
    Exit,
    ExitError,
    end_on_failed_preflight,
    no_core_dumps,
)
from trainyard.core.variables import GRACE_SECONDS, PEERS_WAIT, SPARES, read_number
from trainyard.pod import agent, log, peers, process, transport
from trainyard.pod.presence import Listener
from trainyard.run import attempts
from trainyard.telemetry import flight

ONE_NODE = ("1", "1:1")
JOIN_SECONDS = 600  # for which nodes wait for each other at a restart: torchrun's own
CAUSE_SECONDS = 3.0  # that a pod which lost another one ends after it
# How a process ends because of another's failure; SIGABRT is NCCL's, where a collective was lost or came too late
FOLLOWS = (Exit.HANG, -signal.SIGTERM, -signal.SIGABRT)
STARTED = time.time()  # of this launcher
WHY: dict[int, str] = {
    signal.SIGKILL: ", as the kernel does where memory is short",
    signal.SIGABRT: ", as NCCL's watchdog does where a collective fails or takes longer than comm.timeout_seconds",
}
ADDRESSES = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_STANDALONE")


def with_log() -> int:
    """Start the ranks of this node: the start is counted, and a pod keeps what they print in the run directory, too."""
    return attempts.count_and_run(lambda: log.keep_output(main))


def main(argv: list[str] | None = None) -> int:
    """Launch the processes and wait for them."""
    interrupts.outlive_terminal()
    process.end_on_sigterm(attempts.forget_on_stop)  # torch's agent handles it once it runs
    no_core_dumps()
    try:
        with peers.excuse_spare():
            end_on_failed_preflight()
            listening = preflight()
    except peers.OverError as error:
        print(f"preflight: {error}: this spare pod is not needed", flush=True)
        return Exit.DONE
    leave_shapes_out()
    # Imported late: torch takes seconds, and peers that have started already ask this pod
    with garbage.paused():
        import torch
        from torch.distributed import run as torchrun
        from torch.distributed.launcher.api import elastic_launch

    options: Any = torchrun.parse_args(  # type: ignore[no-untyped-call]
        sys.argv[1:] if argv is None else argv
    )
    meet_again(options)
    if _alone(options) or (options.max_restarts and options.rdzv_backend == "static"):
        options.rdzv_backend, options.rdzv_endpoint = "c10d", "127.0.0.1:0"
        options.rdzv_id = f"trainyard-{os.getpid()}"
    if options.max_restarts:
        # With a shared store, processes that the agent restarts in place would find stale keys of their predecessors.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads(options.nproc_per_node)))
    os.environ[LAUNCHER] = str(os.getpid())
    show_errors_once(quietly=not options.max_restarts)
    told_to_end: set[int] = set()
    grace = read_number(GRACE_SECONDS)
    agent.adapt(grace, told_to_end)
    process.end_with_hung_children(grace)
    flight.switch_on(torch.__version__)
    with notes_of_torch(options):
        config, command, arguments = torchrun.config_from_args(options)
        if listening is not None:
            listening.state = "loaded"
            agent.tell_peers_who_trains(listening)
            if options.rdzv_backend == "c10d":
                peers.watch_first(functools.partial(process.end_with_children, Exit.HANG, grace))
        try:
            return wait_for_ranks(lambda: elastic_launch(config, command)(*arguments), told_to_end, config.max_nodes)
        finally:
            if listening is not None:
                listening.close()


def leave_shapes_out() -> None:
    """Let torch, if it is not imported yet, leave out its functions that get shapes of results without computing them.

    They take a quarter of the import (0.3 of 1.25 s of CPU time with torch 2.15), and a launcher computes nothing.
    """
    shapes = "torch._meta_registrations"
    sys.modules.setdefault(shapes, types.ModuleType(shapes))


@contextlib.contextmanager
def notes_of_torch(options: Any) -> Iterator[None]:
    """Let torch make its folders of each start in one that goes with this launcher, unless --log-dir names another."""
    with tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as folder:
        options.log_dir = options.log_dir or folder
        yield


def wait_for_ranks(launch: Callable[[], object], told_to_end: set[int], nodes: int) -> int:
    """Let torch's agent run the ranks, and return the exit code to report; raises ExitError where pods are lost.

    `nodes` is the number of pods that train.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    try:
        launch()
    except ChildFailedError as error:
        failures = {
            rank: (failure.exitcode, failure.timestamp) for rank, failure in error.failures.items()
            if not (failure.exitcode == -signal.SIGKILL and failure.pid in told_to_end)
        }  # fmt: skip
        for line in explain_silent_exits(failures):
            print(f"error: {line}", file=sys.stderr, flush=True)
        code = exit_code(failures)
        if code == Exit.HANG:
            let_the_cause_be_seen()
        return code
    except SignalException as error:
        return Exit.STOPPED if error.sigval in agent.UNHURRIED_SIGNALS else 128 + int(error.sigval)
    except (agent.UnneededError, RendezvousError) as error:
        # Without spare pods: the pod that hosts the rendezvous failed; all pods are recreated and meet again
        let_the_cause_be_seen()
        if attempts.has_finished(STARTED, nodes):
            return Exit.DONE
        raise ExitError(f"the pods lost each other ({error})", Exit.HANG) from None
    attempts.note_end()
    return Exit.DONE


def preflight() -> Listener | None:
    """Check this pod's transport, and that it reaches its peers; raises UserError, ExitError and peers.OverError."""
    transport.check()
    listening = peers.check(over=attempts.is_over)
    transport.watch()
    return listening


def meet_again(options: Any) -> None:
    """Have several nodes that may restart in place meet by a rendezvous, at the address and port of the first of them.

    Without one only the processes of one node would restart, and meet in the store that all share what those before
    them have left.
    """
    if not options.max_restarts or options.rdzv_backend != "static" or options.nnodes in ONE_NODE:
        return
    wait = max(JOIN_SECONDS, int(read_number(PEERS_WAIT)))
    own = f"is_host={int(options.node_rank) == 0},join_timeout={wait}"
    if spares := int(read_number(SPARES)):  # of a TrainJob, which numbers them with the others
        options.nnodes = str(int(options.nnodes) - spares)
    options.rdzv_backend = "c10d"
    options.rdzv_endpoint = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}"
    options.rdzv_conf = f"{own},{options.rdzv_conf}" if options.rdzv_conf else own  # what is named later holds
    options.node_rank = 0  # torchrun warns that it takes no part in a rendezvous


def show_errors_once(quietly: bool) -> None:
    """Give the processes a file in which they note what they have printed; `quietly` silences the agent's lines.

    The file has no name and ends with the launcher, however that ends. The agent alone tells why it restarts processes
    in place, and LOGLEVEL shows its lines.
    """
    os.environ[SAID] = f"/proc/{os.getpid()}/fd/{os.memfd_create('trainyard-said')}"
    if quietly and "LOGLEVEL" not in os.environ:
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        logging.getLogger("torch.distributed.elastic.agent.server.api").setLevel(logging.ERROR)  # that a signal came


def explain_silent_exits(failures: Mapping[int, tuple[int, int]]) -> list[str]:
    """Get a line for each process that could not say why it ended: by a signal, or with a code that is none of ours."""
    lines = []
    for rank, (code, _) in sorted(failures.items()):
        if code < 0 and code != -signal.SIGTERM:  # by which the agent ends the others
            why = WHY.get(-code, "")
            known = -code in list(signal.Signals)  # not all of the real-time ones are
            name = signal.Signals(-code).name if known else f"signal {-code}"
            lines.append(f"rank {rank} was ended by {name}{why}")
        elif code > 0 and code not in list(Exit):
            lines.append(f"rank {rank} ended with code {code}")
    return lines


def exit_code(failures: Mapping[int, tuple[int, int]]) -> int:
    """Return the exit code to report: a permanent cause first, then the earliest failure, then the loss of a peer."""

    def order(failure: tuple[int, int]) -> tuple[int, int]:
        code, when = failure
        follows = code in FOLLOWS
        return (0 if code in (Exit.CONFIG, Exit.NAN) else 2 if follows else 1, when)

    code = min(failures.values(), key=order, default=(1, 0))[0]
    return 128 - code if code < 0 else code


def let_the_cause_be_seen() -> None:
    """Wait on a cluster before this pod ends because it lost another one, which may have failed for good.

    The Job of a TrainJob acts on the first failure that it sees, and the kubelet looks for ended containers once a
    second: seen first, this pod's code would start all pods again for nothing.
    """
    if os.environ.get("TRAINYARD_JOB"):
        time.sleep(CAUSE_SECONDS)


def _alone(options: Any) -> bool:
    """Whether no option or variable names another node."""
    named = any(argument.startswith(("--master", "--rdzv", "--standalone")) for argument in sys.argv)
    return options.nnodes in ONE_NODE and not named and not any(os.environ.get(name) for name in ADDRESSES)


def _threads(processes: str) -> int:
    """Threads per process for arithmetic: its share of the cores."""
    count = int(processes) if processes.isdigit() else 1
    return max(1, len(os.sched_getaffinity(0)) // count)
