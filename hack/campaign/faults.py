"""The faults of a campaign, and the schedule that a seed draws of them: pure functions."""

import random
from collections.abc import Sequence
from typing import NamedTuple

GAP = (15, 25)  # seconds of training before a fault: the run saves a checkpoint at least every 15 s


class Kind(NamedTuple):
    """A kind of fault: the words of hack/cluster/fault with NODE for a node, or what is done to a pod."""

    words: str
    seconds: tuple[int, int]  # how long it may last; (0, 0): what is done cannot be undone
    person: str = ""  # what a person, or the cloud, does then; empty: nothing


# What is done by other means than hack/cluster/fault alone
KILL, STOP, DELETE, GONE = "kill a rank", "stop a rank", "delete a pod", "kill NODE for good"
FAILED = "deletes the failed job, and upgrades with the same values"
KINDS = {
    "a rank is killed": Kind(KILL, (0, 0)),
    "a rank is stopped": Kind(STOP, (0, 0)),
    "a pod is deleted": Kind(DELETE, (0, 0)),
    "a node dies and comes back": Kind("kill NODE", (80, 100)),
    "a node dies for good": Kind(GONE, (0, 0), "taints the node as out of service, or removes it, as clouds do"),
    "a node is cut from the other nodes": Kind("cut NODE nodes", (30, 45)),
    "a node is cut from the API server": Kind("cut NODE api", (20, 40)),
    "a node is cut from storage": Kind("cut NODE storage", (20, 35)),
    "a node's cable is out": Kind("cut NODE all", (30, 45)),
    "a node's cable is slow": Kind("slow NODE 10mbit", (20, 30)),
    "a node is drained": Kind("drain NODE", (10, 20)),
    "the file server hangs": Kind("storage hang", (20, 35)),
    "the file server is down": Kind("storage down", (10, 25)),
    "the disk of the file server is full": Kind("storage full", (25, 35), FAILED),
    "the API server is down": Kind("down api", (20, 30)),
    "etcd is down": Kind("down etcd", (20, 30)),
    "the operator is down": Kind("down OPERATOR", (20, 30)),
}
OPERATORS = {"pytorchjob": "training-operator", "mpijob": "mpi-operator"}  # those that hack/cluster/fault knows


class Fault(NamedTuple):
    """One fault of a schedule."""

    kind: str
    pod: int  # the pod, in the order of their names, that it is done to, or whose node
    seconds: int  # how long it lasts
    gap: int  # seconds of training before it

    @property
    def done_by(self) -> str:
        """The words of its kind."""
        return KINDS[self.kind].words

    def words(self, node: str, operator: str) -> list[str]:
        """Return the words of hack/cluster/fault for a node and the operator of a job; none where other means do it."""
        if self.done_by in (KILL, STOP, DELETE, GONE):
            return []
        return self.done_by.replace("NODE", node).replace("OPERATOR", OPERATORS.get(operator, "")).split()


def draw(seed: int, count: int, operator: str, only: Sequence[str] = ()) -> list[Fault]:
    """Draw a schedule: each kind, or each of `only`, once before one comes again, in an order that the seed decides."""
    source = random.Random(seed)
    known = [kind for kind in only or KINDS if operator in OPERATORS or "OPERATOR" not in KINDS[kind].words]
    found: list[Fault] = []
    while len(found) < count:
        for kind in source.sample(known, len(known)):
            seconds = source.randint(*KINDS[kind].seconds)
            found.append(Fault(kind, source.randrange(2), seconds, source.randint(*GAP)))
    return found[:count]


def short() -> list[Fault]:
    """Return a schedule of one fault of each sort: of a process, a pod, a cable and a node."""
    kinds = ("a rank is killed", "a pod is deleted", "a node is cut from storage", "a node dies for good")
    return [Fault(kind, number % 2, KINDS[kind].seconds[0], GAP[0]) for number, kind in enumerate(kinds)]
