"""The remote half of the checks before training: whether this pod finds and reaches its peers.

The main container of a PyTorchJob or TrainJob (`trainyard launch`) checks this before the process group forms. Each pod
listens on one port for as long as it lives and connects to that port of its peers, since a name that resolves does not
mean an open port. The check waits for pods that have not started and prints which; a pod that runs but cannot be
reached ends the check within half a minute. Then the first pod loads torch, which may take minutes from a slow disk,
and says so: only after that it must open the rendezvous port within half a minute.

    TRAINYARD_PEERS_PORT   port of the check; unset, nothing is checked (a single machine, or an MPIJob, whose launcher
                           asks the workers' ssh instead)
    TRAINYARD_PEERS_WAIT   most seconds to wait for pods that have not started
    TRAINYARD_SPARES       pods beyond those that train; so many may be out of reach
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainyard.core.exits import CURED_BY_RETRY, Exit, ExitError, UserError
from trainyard.core.files import whole
from trainyard.core.storage import storage
from trainyard.core.variables import PEERS_WAIT, SPARES, read_number
from trainyard.pod.presence import LOADED, NO_NAME, PROBE_SECONDS, Listener, Peer, ask, explain, listen

BOUND = 25.0  # seconds that a running pod may take to answer
SPARED = 10.0  # of a pod that a spare one can stand in for
TRIES = 3  # failures in a row after which the failure is permanent
ASK_ALL = 64  # up to so many pods, each asks all others; beyond that, only the first one does, on which all wait
EVERY = 10.0  # seconds between lines while waiting
REGROUP = 60.0  # in which the others take a spare pod in
MISSED = 60.0  # after which a pod ends that has not noticed that the first one is another by now
AGAIN = 60.0  # after which a spare pod that failed for good is started again
APART = 10.0  # seconds between the clocks of two nodes; by torch's rendezvous a pod is lost that is silent for 15


@dataclass(frozen=True)
class PeerPlan:
    """The names of this pod and of the peers that it must reach."""

    job: str
    me: str
    names: tuple[str, ...]  # all pods of the job, in the order of their ranks
    least: int  # pods with which training may begin
    port: int
    rendezvous: int  # the first pod's port, where the process group meets
    wait: float
    bound: float = BOUND
    spares: int = 0  # as many pods may be out of reach
    timed: bool = False  # they meet by torch's rendezvous, which compares their nodes' clocks

    def choose_peers(self) -> tuple[str, ...]:
        """Return the peers that this pod asks."""
        others = [name for name in self.names if name != self.me]
        if len(self.names) <= ASK_ALL or self.me == self.names[0]:
            return tuple(others)
        here = self.names.index(self.me)
        near = [self.names[(here + step) % len(self.names)] for step in (1, 2)]
        return tuple(name for name in others if name == self.names[0] or name in near)


def plan(environ: Mapping[str, str], hostname: str) -> PeerPlan | None:
    """Read the plan from the variables of the operator and the chart; None where there is nothing to check."""
    job, port = environ.get("TRAINYARD_JOB", ""), environ.get("TRAINYARD_PEERS_PORT", "")
    least, _, most = environ.get("PET_NNODES", "1").partition(":")
    spares = int(read_number(SPARES, environ))
    endpoint = environ.get("PET_RDZV_ENDPOINT", "")
    first, _, domain = environ.get("PET_MASTER_ADDR", "").partition(".")
    # a PyTorchJob names how many train, a TrainJob the number of its pods
    nodes = int(most or least) + (spares if endpoint else 0)
    if not (job and port) or nodes < 2:
        return None
    me = hostname
    if endpoint:
        names = [f"{job}-worker-{index}" for index in range(nodes)]
        meet = endpoint.rpartition(":")[2]
    elif first == f"{job}-node-0-0":  # of a TrainJob, whose pods have names below that of their JobSet
        names = [f"{job}-node-0-{index}.{domain}" for index in range(nodes)]
        meet, me = environ.get("PET_MASTER_PORT", "29500"), f"{hostname}.{domain}"
    else:
        names = [f"{job}-master-0", *(f"{job}-worker-{index}" for index in range(nodes - 1))]
        meet = environ.get("PET_MASTER_PORT") or environ.get("MASTER_PORT", "23456")
    if me not in names:
        raise UserError(f"this pod is {hostname}, which is none of the job's {nodes} pods ({names[0]} ... {names[-1]})")
    wait = read_number(PEERS_WAIT, environ)
    least_pods = min(int(least), nodes - spares)
    timed = bool(endpoint) or environ.get("PET_MAX_RESTARTS", "") not in ("", "0")
    return PeerPlan(job, me, tuple(names), least_pods, int(port), int(meet), wait, spares=spares, timed=timed)


class OverError(Exception):
    """The run had finished before this spare pod started, and the other pods are gone."""


def reach(what: PeerPlan, listener: Listener, every: float = EVERY, over: Callable[[], bool] = lambda: False) -> None:
    """Return when all required peers answer.

    Raises ExitError if a running one cannot be reached or has another time, or one never comes, and OverError in a job
    with spare pods where nobody will come: `over` tells whether its run has finished.
    """
    started, said, first = time.monotonic(), 0.0, what.names[0]
    peers = {name: Peer() for name in what.choose_peers()}
    with ThreadPoolExecutor(min(32, len(peers))) as pool:
        while True:
            wanted = [name for name, peer in peers.items() if peer.why or (name == first and peer.state == "waits")]
            answers = pool.map(lambda name: ask(name, what.port, what.job, peers[name]), wanted)
            peers.update(zip(wanted, answers, strict=True))
            _compare_clocks(what, peers)
            now = time.monotonic()
            if listener.state == "waits" and _enough(what, peers, now):
                listener.state = "ready"
            if listener.state == "ready" and (what.me == first or peers[first].state != "waits"):
                there = sum(not peer.why for peer in peers.values())
                print(f"preflight: {there + 1} pods reach each other, {now - started:.1f} s", flush=True)
                return
            if now - said >= every:
                if what.spares and over():
                    raise OverError("the run has finished")
                print(f"preflight: {_waiting(peers)}, {what.wait - (now - started):.0f} s left", flush=True)
                said = now
            _give_up(what, peers, now, now - started)
            time.sleep(pause(now - started, len(what.names)))


def _compare_clocks(what: PeerPlan, peers: Mapping[str, Peer]) -> None:
    """Raise ExitError where the rendezvous would take pods that live for lost ones."""
    name, peer = max(peers.items(), key=lambda one: abs(one[1].ahead))
    if what.timed and abs(peer.ahead) > APART:
        how = "ahead of" if peer.ahead > 0 else "behind"
        raise ExitError(
            f"the clock of {name}'s node is {abs(peer.ahead):.0f} s {how} this one's, and torch's rendezvous takes a "
            "pod for lost by the time of its last sign of life: set the clocks of both nodes (`timedatectl`, chrony)",
            Exit.HANG,
        )


def pause(passed: float, pods: int) -> float:
    """Return the seconds between two looks; many pods that start at once would ask the cluster's DNS too often."""
    return 0.2 if passed < 5 and pods <= ASK_ALL else 1.0


def _enough(what: PeerPlan, peers: Mapping[str, Peer], now: float) -> bool:
    """Whether all running peers answer, the first pod is among them, and they are as many as training needs.

    As many as there are spare pods may be out of reach: for some seconds, or at all where the others train already.
    """
    first = peers.get(what.names[0])
    there = sum(not peer.why for peer in peers.values())
    unreached = sum(peer.why not in ("", NO_NAME) for peer in peers.values())
    begun = first is not None and first.state in LOADED
    lost = unreached if begun else len(_lost(peers, now, min(what.bound, SPARED)))
    return (
        there >= min(len(peers) - what.spares, what.least - 1)
        and unreached == min(lost, what.spares)
        and (first is None or not first.why)
    )


def _lost(peers: Mapping[str, Peer], now: float, bound: float) -> list[str]:
    """Return the pods that run and have not answered for `bound` seconds."""
    return [name for name, peer in peers.items() if peer.why not in ("", NO_NAME) and now - peer.since > bound]


def _give_up(what: PeerPlan, peers: Mapping[str, Peer], now: float, waited: float) -> None:
    """Raise ExitError when more pods than there are spares are lost, or the first one, or the time to wait is over."""
    lost = _lost(peers, now, what.bound)
    if len(lost) > what.spares or what.names[0] in lost:  # which is the first in the list
        peer = peers[lost[0]]
        raise ExitError(_cannot_reach(lost[0], what.port, peer.why, now - peer.since), Exit.HANG)
    if waited > what.wait:
        raise ExitError(_never_came(peers, what.wait), Exit.HANG)


def meet(what: PeerPlan) -> None:
    """Check that the first pod opens the rendezvous port; on the first pod, that the port is free.

    Its time begins when the first pod has loaded torch, or no longer answers. Raises ExitError, and UserError where the
    port is taken.
    """
    if what.me == what.names[0]:
        try:
            listen(what.rendezvous).close()
        except OSError as error:
            raise UserError(
                f"the rendezvous port {what.rendezvous} cannot be listened on here ({explain(error)})"
            ) from None
        return
    begun = said = time.monotonic()
    end, first = begun + what.bound, Peer()
    while True:
        now = time.monotonic()
        try:
            socket.create_connection((what.names[0], what.rendezvous), PROBE_SECONDS).close()
            return
        except OSError as error:
            why = explain(error)
        first = ask(what.names[0], what.port, what.job, first)
        if not first.why and first.state not in LOADED and now - begun < what.wait:
            end = now + what.bound
            if now - said >= EVERY:
                print(f"preflight: waiting for {what.names[0]}, which loads torch", flush=True)
                said = now
        elif now > end:
            raise ExitError(
                f"{what.names[0]} answers, but not on the rendezvous port {what.rendezvous} ({why} for "
                f"{what.bound:.0f} s): see that pod's log; MASTER_PORT must be the same in all pods, and no "
                "NetworkPolicy may keep them apart",
                Exit.HANG,
            )
        time.sleep(0.2 if now - begun < 5 else 1.0)


def check(
    environ: Mapping[str, str] = os.environ, hostname: str = "", over: Callable[[], bool] = lambda: False
) -> Listener | None:
    """Run the checks that the environment asks for; None where it asks for none. The operator retries a few failures.

    Raises ExitError, OverError as `reach` does, and UserError for what a retry does not change.
    """
    what = plan(environ, hostname or socket.gethostname())
    if what is None:
        return None
    note = _note(environ, what)
    listener = Listener(what.job, what.port)
    try:
        reach(what, listener, over=over)
        meet(what)
    except OverError:
        listener.close()
        raise
    except ExitError as error:
        listener.close()
        tries = _count(note, what.job)
        print(f"preflight: {error}", file=sys.stderr, flush=True)
        if tries >= TRIES:
            raise ExitError(f"{error} ({tries} tries in a row)", Exit.CONFIG) from None
        raise
    if note is not None:
        note.unlink(missing_ok=True)
    if what.spares:
        print(f"{what.spares} of the job's {len(what.names)} pods will wait until another is lost", flush=True)
    return listener


def watch_first(end: Callable[[str], object], environ: Mapping[str, str] = os.environ, hostname: str = "") -> None:
    """Call `end` with the reason, on a thread, where the first pod was replaced and this one has not noticed it."""
    what = plan(environ, hostname or socket.gethostname())
    if what is not None and what.me != what.names[0]:
        threading.Thread(target=miss_first, args=(what, end), daemon=True, name="first").start()


def miss_first(what: PeerPlan, end: Callable[[str], object], every: float = EVERY) -> None:
    """Call `end` with the reason once the first pod has been another one than before for MISSED seconds.

    torch waits for an answer of the former one until the kernel gives up the connection, which takes a quarter of an
    hour where a machine has lost its power.
    """
    met, missed = Peer(), 0.0
    while missed <= MISSED:
        time.sleep(every)
        now = ask(what.names[0], what.port, what.job, met)
        if now.why:
            continue
        met = met if met.address else now
        moved = now.address != met.address and (":" in now.address) == (":" in met.address)  # not IPv4 in place of IPv6
        missed = missed + every if moved or now.state not in LOADED else 0.0
    end(f"{what.names[0]}, which hosts the rendezvous, was replaced; this pod ends to meet the new one")


@contextlib.contextmanager
def excuse_spare(environ: Mapping[str, str] = os.environ, hostname: str = "") -> Iterator[None]:
    """Keep a spare pod that fails for good, before it has trained, from ending the job of those that train without it.

    It says why, waits as a spare pod does, and raises ExitError with a code that is retried.
    """
    try:
        yield
    except (UserError, ExitError) as error:
        code = error.code if isinstance(error, ExitError) else Exit.CONFIG
        if code >= CURED_BY_RETRY:
            raise
        if not _others_train(environ, hostname or socket.gethostname()):
            _forget_failures(environ, hostname or socket.gethostname())
            raise
        rest = f"the other pods train without this one, which is tried again every {AGAIN:.0f} s"
        print(f"error: {error}\npreflight: {rest}", file=sys.stderr, flush=True)
        time.sleep(AGAIN)
        raise ExitError(f"{error} ({rest})", Exit.HANG) from None


def _others_train(environ: Mapping[str, str], hostname: str) -> bool:
    """Whether the others of a job with spare pods train, or do within the time in which they take a spare one in."""
    try:
        what = plan(environ, hostname)
    except UserError:
        return False
    if what is None or not what.spares or what.me == what.names[0]:
        return False
    end = time.monotonic() + REGROUP
    # The first one may be the one that waits, after all have started again in their pods
    while not any(ask(name, what.port, what.job, Peer()).state == "trains" for name in what.choose_peers()):
        if time.monotonic() > end:
            return False
        time.sleep(1.0)
    return True


def _cannot_reach(name: str, port: int, why: str, seconds: float) -> str:
    remedy = {
        "something else answers": "set global.training.peers.port to a port that nothing in the pods uses",
        "connection refused": "its check does not listen there: see its log; all pods must have one image and one "
        "global.training.peers.port",
    }.get(why, "a NetworkPolicy, mesh or firewall keeps the pods apart: let them reach each other on all ports")
    return f"{name} runs, but port {port} cannot be reached ({why} for {seconds:.0f} s): {remedy}"


def _never_came(peers: Mapping[str, Peer], seconds: float) -> str:
    missing = [name for name, peer in peers.items() if peer.why]
    return (
        f"{len(missing)} pods did not start within {seconds:.0f} s ({', '.join(missing[:5])}): see their events with "
        f"`kubectl describe pod {missing[0].partition('.')[0] if missing else ''}`, or raise global.training.peers.wait"
    )


def _waiting(peers: Mapping[str, Peer]) -> str:
    missing = {name: peer.why for name, peer in peers.items() if peer.why}
    if not missing:
        return "all pods answer; waiting for the first one's own check"
    shown = "; ".join(f"{name}: {why}" for name, why in list(missing.items())[:5])
    return f"waiting for {len(missing)} of {len(peers)} peers ({shown})"


def _note(environ: Mapping[str, str], what: PeerPlan) -> Path | None:
    """Return the file that counts failures in a row: beside the pod's log, since each retry is a new pod."""
    folder = environ.get("TRAINYARD_LOGS")
    me = what.me.partition(".")[0].removeprefix(f"{what.job}-")
    return Path(folder) / f"{me}.peers.json" if folder else None


def _forget_failures(environ: Mapping[str, str], hostname: str) -> None:
    """Forget the failures of a pod that ends for good: a person who deletes the job and tries again begins anew."""
    with contextlib.suppress(UserError, OSError):
        what = plan(environ, hostname)
        if what is not None and (note := _note(environ, what)) is not None:
            note.unlink(missing_ok=True)


def _count(note: Path | None, job: str) -> int:
    if note is None:
        return 0
    try:
        old = storage.read_json(note)
        tries = (whole(old, "tries") if old.get("job") == job else 0) + 1
        note.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(note, {"job": job, "tries": tries})
    except OSError:
        return 0
    return tries
