"""A run on three nodes, the faults of a schedule one after the other, and what each cost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hack.campaign import cluster, costs
from hack.campaign.cluster import OUT_OF_SERVICE, ROOT, CommandError, kubectl, succeeds, wait
from hack.campaign.faults import DELETE, FAILED, GONE, KILL, KINDS, STOP, Fault
from hack.campaign.page import Row

RELEASE = "campaign"
HERE = Path(__file__).parent
VALUES = HERE / "values.yaml"
PEER, CHECKPOINT = HERE / "peer.yaml", "checkpoint.pth.tar"  # peer.py
SAVES = {"epoch": 0, "steps": 100}  # the peer's checkpoints: steps between two within an epoch, 0 for none
PEER_FAILED = "deletes the failed job, and applies it again"
EPOCH = 600  # steps of a peer's epoch: five minutes, as ImageNet takes at 4,300 images/s
FAST = "/tmp/unpaced"  # paced.py
LOADED = 30.0  # seconds until a spare pod has surely loaded torch
SETTLED = 6  # steps after which the run goes on
LIMIT, PEER_LIMIT = 420.0, 300.0  # seconds after a fault was undone, until somebody starts the run by hand


class Job(NamedTuple):
    """The run that faults are done to."""

    namespace: str
    operator: str
    tag: str
    steps: int
    elastic: bool = False  # three pods, of which two are enough; otherwise two
    spares: int = 0  # pods more, that wait
    peer: str = ""  # a key of SAVES: another program, which the chart does not know

    @property
    def limit(self) -> float:
        """Seconds after which a person helps."""
        return PEER_LIMIT if self.peer else LIMIT

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of its metrics."""
        return cluster.events(self.namespace, RELEASE)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def install(job: Job) -> None:
    """Install the run, or upgrade it with the same values; raises CommandError."""
    files = (f"--from-file={HERE / name}" for name in ("paced.py", "peer.py"))
    kubectl("apply", "-n", job.namespace, "-f", "-", stdin=run_client("create", "configmap", "paced", *files))
    if job.peer:
        kubectl("apply", "-n", job.namespace, "-f", "-", stdin=peer_manifest(job))
        return
    settings = ["--set", f"global.training.operator={job.operator},global.training.config.max_steps={job.steps}"]
    settings += ["--set", f"global.image.registry=localhost,global.image.tag={job.tag}"]
    if job.operator != "pytorchjob":  # whose elastic form has a key for it
        name = "global.training.env[4]"
        settings += ["--set-string", f"{name}.name=PET_MAX_RESTARTS,{name}.value=100"]
    if job.elastic:
        settings += ["--set", "global.training.nodes=3,pytorchjob.elastic.minNodes=2"]
    if job.spares:  # each pod on a node of its own: one that dies takes one of them
        spread = "global.scheduling.topologySpreadConstraints[0]"
        key = "pytorchjob.elastic.spares" if job.operator == "pytorchjob" else f"{job.operator}.spares"
        settings += ["--set", f"{key}={job.spares},{spread}.whenUnsatisfiable=DoNotSchedule"]
        settings += ["--set", f"{spread}.maxSkew=1,{spread}.topologyKey=kubernetes.io/hostname"]
        # a launcher whose own node dies is recreated by its Job, after Kubernetes has noticed
        selector = r"mpijob.launcher.scheduling.nodeSelector.kubernetes\.io/hostname"
        settings += ["--set", f"{selector}={cluster.FIRST}"] if job.operator == "mpijob" else []
    cluster.helm(
        "upgrade", "--install", RELEASE, ROOT / "charts/trainyard", "-n", job.namespace, "-f", VALUES, *settings
    )


def peer_manifest(job: Job) -> str:
    """Return the objects of a peer."""
    text = PEER.read_text().replace(":TAG", f":{job.tag}")
    return text.replace('"EPOCH"', f'"{EPOCH}"').replace('"SAVE"', f'"{SAVES[job.peer]}"')


def run_client(*args: str) -> str:
    """Return an object that kubectl makes from arguments, without asking the cluster."""
    return kubectl(*args, "--dry-run=client", "-o", "yaml")


def begin(job: Job) -> None:
    """Create the namespace, start the run in it, and wait for its first steps; raises CommandError."""
    kubectl("apply", "-f", "-", stdin=run_client("create", "namespace", job.namespace))
    # With spare pods the first pod, which hosts the rendezvous, is on the node that does not die
    others = ("-l", f"kubernetes.io/hostname!={cluster.FIRST}")
    if job.spares:
        kubectl("cordon", *others)
    wait("the job is made", lambda: succeeds(lambda: install(job)), LIMIT)  # a webhook may not answer yet
    if job.spares:
        wait("a pod is placed", lambda: any(map(cluster.node_of, cluster.pods(job.namespace, RELEASE))), LIMIT)
        kubectl("uncordon", *others)
    wait("the run's first steps", lambda: costs.goes_on(job.events(), 0.0, SETTLED), 2 * LIMIT)


def perform(job: Job, fault: Fault, watch: cluster.Watch) -> Row:
    """Make a fault, undo it, wait until the run goes on, and return what it cost; raises CommandError."""
    wait("training before the fault", lambda: _trained(job, fault.gap) and _spares_wait(job), LIMIT)
    pods = wait_for_pods(job)
    pod = pods[fault.pod % len(pods)]
    # The first node has the control plane; then it is the other pod's node, which is elsewhere
    nodes = [cluster.node_of(one) for one in (pod, *pods)]
    node, name = next(one for one in (*nodes, cluster.SECOND) if one != cluster.FIRST), str(pod["metadata"]["name"])
    words = fault.words(node, job.operator)
    began = time.time()
    _make(job, fault, name, node, words)
    time.sleep(fault.seconds)
    if words:
        cluster.fault("--undo", *words)
    person = _wait_until_it_goes_on(job)
    if fault.done_by == GONE:
        person = KINDS[fault.kind].person
        cluster.fault("--undo", "kill", node)
        cluster.put_in_service(node)
    place = node if "NODE" in fault.done_by else name if fault.done_by in (KILL, STOP, DELETE) else ""
    return Row(fault, place, costs.cost(job.events(), began, time.time(), watch.signs), person)


def _make(job: Job, fault: Fault, pod: str, node: str, words: list[str]) -> None:
    """Make a fault; of a node that dies for good, wait until Kubernetes knows, and take it out of service."""
    how = fault.done_by
    if how in (KILL, STOP):
        cluster.signal_rank(job.namespace, pod, signal.SIGKILL if how == KILL else signal.SIGSTOP)
    elif how == DELETE:
        kubectl("delete", "pod", pod, "-n", job.namespace, "--wait=false")
    elif how == GONE:
        cluster.fault("kill", node)
        wait(f"{node} is not ready", lambda: not cluster.is_ready(node), LIMIT)
        kubectl("taint", "nodes", node, OUT_OF_SERVICE)
    else:
        cluster.fault(*words)


def _trained(job: Job, seconds: int) -> bool:
    """Whether the run has trained for so long since it started last."""
    events = job.events()
    starts, train = costs.of_kind(events, "start"), costs.of_kind(events, "train")
    return (
        bool(starts and train)
        and train[-1]["time"] - starts[-1]["time"] >= seconds
        and time.time() - train[-1]["time"] < 5
    )


def _spares_wait(job: Job) -> bool:
    """Whether all pods, spare ones too, have run for as long as they take to come to wait."""
    if not job.spares:
        return True
    found: list[cluster.Pod] = []
    succeeds(lambda: found.extend(cluster.pods(job.namespace, RELEASE)))
    return sum(cluster.seconds_running(pod) > LOADED for pod in found) >= 2 + job.spares


def wait_for_pods(job: Job) -> list[cluster.Pod]:
    """Return the pods of the run without spare ones, once two run that nobody has told to end; raises CommandError."""
    found: list[cluster.Pod] = []

    def look() -> bool:
        try:
            found[:] = [pod for pod in cluster.pods(job.namespace, RELEASE)
                        if pod["status"].get("phase") == "Running" and not cluster.is_told_to_end(pod)
                        and (not job.spares or cluster.trains(job.namespace, pod))]  # fmt: skip
        except CommandError:
            return False
        return len(found) >= 2

    wait("two pods run", look, LIMIT)
    return found


def _wait_until_it_goes_on(job: Job) -> str:
    """Wait until the run trains; return what had to be done by hand, empty for nothing."""
    since, failed, person = time.time() + 2, False, ""

    def look() -> bool:
        nonlocal failed, person, since
        if costs.goes_on(job.events(), since, SETTLED) or finished(job):
            return True
        failed = failed or has_failed(job)
        if failed and succeeds(lambda: start_anew(job)):  # again and again: a disk may be full for seconds more
            failed, since = False, time.time()
            person = person or (PEER_FAILED if job.peer else FAILED)
        return False

    def goes_on(do: Callable[[Job], None]) -> None:
        do(job)
        wait("the run goes on", look, job.limit)

    if succeeds(partial(goes_on, lambda _: None)):
        return person
    helps = [("deletes all pods", delete_pods)]
    if job.peer:
        helps.append((f"removes {CHECKPOINT} and all pods", remove_checkpoint))
    for what, do in helps:
        say(why(job))
        person += f"{', ' if person else ''}not back after {job.limit:.0f} s: {what}"
        if succeeds(partial(goes_on, do)):
            return person
    return f"{person}, not back after {job.limit:.0f} s more"


def start_anew(job: Job) -> None:
    """Do what a person does about a job that has failed for good; raises CommandError."""
    kubectl("delete", f"{job.operator}s", "--all", "-n", job.namespace)
    install(job)


def delete_pods(job: Job) -> None:
    """Delete all pods of the run; raises CommandError."""
    kubectl("delete", "pods", "-n", job.namespace, "-l", f"app.kubernetes.io/instance={RELEASE}", "--wait=false")


def remove_checkpoint(job: Job) -> None:
    """Do what a person does about a peer's checkpoint that was being written when a fault came; raises CommandError."""
    if folder := cluster.run_folder(job.namespace, RELEASE):
        (folder / CHECKPOINT).unlink(missing_ok=True)
    delete_pods(job)


def has_failed(job: Job) -> bool:
    """Whether the job has failed for good; False where the cluster does not answer."""
    path = 'jsonpath={.items[*].status.conditions[?(@.type=="Failed")].status}'
    try:
        return "True" in kubectl("get", f"{job.operator}s", "-n", job.namespace, "-o", path)
    except CommandError:
        return False


def why(job: Job) -> str:
    """Return what trainyard why says of the run, or of a peer its pods and what they printed last."""
    if job.peer:
        said: list[str] = []
        of = ("-n", job.namespace, "-l", f"app.kubernetes.io/instance={RELEASE}")
        for words in (("get", "pods", "-o", "wide"), ("logs", "--tail=12", "--prefix")):
            try:
                said.append(kubectl(*words, *of))
            except CommandError as error:
                said.append(str(error))
        return "\n".join(said)
    env = {**os.environ, "KUBECONFIG": str(cluster.STATE / "run/admin.conf")}
    command = [str(ROOT / ".venv/bin/trainyard"), "why", RELEASE, "-n", job.namespace]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def finished(job: Job) -> bool:
    """Whether the run has ended."""
    folder = cluster.run_folder(job.namespace, RELEASE)
    file = folder / "summary.json" if folder else None
    return bool(file and file.exists()) and json.loads(file.read_text()).get("status") == "finished"  # type: ignore[union-attr]


def end(job: Job) -> None:
    """Let the run make its last steps as fast as it can, also in pods that are new meanwhile; raises CommandError."""
    hurried: set[str] = set()

    def look() -> bool:
        if finished(job):
            return True
        found: list[cluster.Pod] = []
        succeeds(lambda: found.extend(cluster.pods(job.namespace, RELEASE)))
        for pod in found:
            uid, name = pod["metadata"]["uid"], str(pod["metadata"]["name"])
            there = pod["status"].get("phase") == "Running" and not cluster.is_told_to_end(pod)
            if there and uid not in hurried:
                touch = ("exec", "-n", job.namespace, name, "--", "touch", FAST)
                if succeeds(partial(kubectl, *touch)):
                    hurried.add(uid)
        return False

    wait("the run's end", look, 4 * LIMIT)


def close(job: Job) -> None:
    """Take the run away, so that it does not disturb the next one; its files stay."""
    if job.peer:
        succeeds(lambda: kubectl("delete", "pytorchjobs", "--all", "-n", job.namespace))
        return
    succeeds(lambda: cluster.helm("uninstall", RELEASE, "-n", job.namespace, limit=LIMIT))


def undisturbed(job: Job, folder: Path) -> Path:
    """Train the same on this machine without a fault, two processes; return its run directory."""
    config = yaml.safe_load(VALUES.read_text())["global"]["training"]["config"]
    file = folder / "config.json"
    file.write_text(
        json.dumps({"recipe": "demo", **config, "max_steps": job.steps, "run": {"dir": str(folder / "run")}})
    )
    command = ["-m", "trainyard", "launch", "--nproc-per-node", "2", "-m", "trainers.ddp", "--config", str(file)]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "PATH": os.environ["PATH"], "PACE": "0"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env={**os.environ, **env}, check=False)
    if done.returncode:
        raise CommandError(f"the undisturbed run ended {done.returncode}")
    return folder / "run"


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of any weight that two runs have published; 0 for the same bits."""
    import torch

    first, second = (torch.load(run / "published/model.pth", weights_only=True) for run in (one, other))
    assert first.keys() == second.keys()
    if all(torch.equal(first[name], second[name]) for name in first):
        return 0.0
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)
