"""trainyard why: for each way in which a run waits or fails, objects as the API shows them, cause and remedy."""

import json
import re
import threading
from typing import Any

import pytest

from tests.charts import helm
from tests.documents import ROOT
from tests.unit.cluster import things
from tests.util.explained import OLD, YOUNG, condition, definition, event, explain, over, says, thing
from tests.util.why_messages import FURTHER, IMAGES, NOT_CREATED, NOT_PLACED, NOT_STARTED, PENDING
from trainyard.cluster import claims, crds, remedies, trainjobs, why
from trainyard.cluster.errors import UnreachableError
from trainyard.cluster.findings import Finding


@pytest.mark.parametrize(("message", "answer"), NOT_CREATED.values(), ids=NOT_CREATED)
def test_pods_that_cannot_be_made(message, answer):
    job = thing("PyTorchJob", "demo-x", {"conditions": [condition("Created")]})
    says(explain(pytorchjobs=[job], events=[event(job, "FailedCreatePod", message)]), message[:40], answer)


@pytest.mark.parametrize(("message", "answer"), NOT_PLACED.values(), ids=NOT_PLACED)
def test_pods_that_find_no_node(message, answer):
    pod = thing(
        "Pod", "demo-x-master-0", {"phase": "Pending", "conditions": [condition("PodScheduled", message, "False")]}
    )
    says(explain(pods=[pod], events=[event(pod, "FailedScheduling", message)]), message[:30], answer)


FULL, TAINTED = NOT_PLACED["GPUs"][0], NOT_PLACED["taint"][0]


def test_a_pod_that_finds_no_node_where_events_are_gone_or_may_not_be_read():
    held = [condition("PodScheduled", FULL, "False", "Unschedulable")]
    pod = thing("Pod", "demo-x-master-0", {"phase": "Pending", "conditions": held})
    says(explain(pods=[pod]), FULL, "global.training.gpusPerNode")
    says(explain(pods=[pod], events=[event(pod, "FailedScheduling", TAINTED)]), FULL, "gpusPerNode")  # the older one
    held[0]["message"] = "waiting for dynamic resource controller to create the resourceclaim"
    template, answer = NOT_STARTED["template of a claim"]
    says(explain(pods=[pod], events=[event(pod, "FailedResourceClaimCreation", template)]), template, answer)


def test_what_the_scheduler_said_before_a_pod_had_a_node_is_over():
    status = {"phase": "Pending", "conditions": [condition("PodScheduled")]}
    pod = thing("Pod", "demo-x-master-0", status, {"nodeName": "gpu-7"})
    before, mount = event(pod, "FailedScheduling", FULL), event(pod, "FailedMount", NOT_STARTED["secret"][0])
    assert "because" not in explain(pods=[pod], events=[before])
    for told in ([before, mount], [mount, before]):
        says(explain(pods=[pod], events=told), "MountVolume", "create that Secret")


def test_of_events_the_one_that_happened_last_counts():
    """Those of events.k8s.io have a time of their first, in microseconds, and of their last in a series."""
    pod = thing("Pod", "demo-x-master-0", {"phase": "Pending"})
    series = {"eventTime": "2026-11-21T10:00:00.123456Z", "lastTimestamp": None, "firstTimestamp": None}
    series |= {"series": {"count": 9, "lastObservedTime": "2026-11-21T11:30:00.123456Z"}}
    newest = event(pod, "FailedScheduling", FULL) | series
    for told in ([newest, event(pod, "FailedScheduling", TAINTED)], [event(pod, "FailedScheduling", TAINTED), newest]):
        says(explain(pods=[pod], events=told), FULL, "gpusPerNode")


def test_a_scheduler_that_is_not_there():
    pod = thing("Pod", "demo-x-master-0", {"phase": "Pending"}, {"schedulerName": "volcano"})
    says(explain(pods=[pod]), "it asks for volcano", "global.scheduling.schedulerName")


def test_a_node_that_pulls_an_image_is_no_fault():
    creating = {"name": "preflight", "state": {"waiting": {"reason": "PodInitializing"}}}
    pod = thing(
        "Pod",
        "demo-x-master-0",
        {"phase": "Pending", "conditions": [condition("PodScheduled")], "initContainerStatuses": [creating]},
    )
    before = event(pod, "FailedScheduling", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    pulling = event(pod, "Pulling", 'Pulling image "r/i:1"', "Normal")
    other = event(thing("Pod", "other"), "Pulled", 'Successfully pulled image "r/i:1" in 3s', "Normal")
    text = explain(pods=[pod], events=[before, pulling, other])
    assert "its node pulls the image r/i:1, once" in text
    assert "remedy" not in text
    assert why.image_being_pulled(pod, [pulling, other]) == "r/i:1"  # of all events of a namespace its own
    done = event(pod, "Pulled", 'Successfully pulled image "r/i:1" in 250s', "Normal")
    assert "pulls" not in explain(pods=[pod], events=[pulling, done])


def test_what_the_page_calls_normal_is_what_it_prints(monkeypatch):
    page = (ROOT / "docs/troubleshooting.md").read_text()
    (shown,) = [one for one in re.findall(r"```text\n(.*?)```", page, re.S) if one.startswith("job/")]
    said = re.findall(r"because: (.*)", shown)
    monkeypatch.setattr(why.kube, "logs", lambda *_, **__: said[0])
    found = [line.split()[0].split("/")[1] for line in shown.splitlines() if "/run-" in line and line[0] != " "]
    job = thing("Job", found[0], {"active": 1}, labels={"app.kubernetes.io/name": "dataset"})
    train = thing("PyTorchJob", found[1], {"conditions": [condition("Created")]})
    preflight = {"name": "preflight", "state": {"running": {"startedAt": OLD}}}
    waits = {"phase": "Pending", "conditions": [condition("PodScheduled")], "initContainerStatuses": [preflight]}
    pulls = thing("Pod", found[4], {"phase": "Pending", "conditions": [condition("PodScheduled")]})
    image = re.findall(r"image (\S+),", said[1])[0]
    pods = [thing("Pod", found[2], {"phase": "Running"}), thing("Pod", found[3], waits), pulls]
    events = [event(pulls, "Pulling", f'Pulling image "{image}"', "Normal")]
    assert explain(jobs=[job], pytorchjobs=[train], pods=pods, events=events) == shown.strip()


@pytest.mark.parametrize(("message", "answer"), NOT_STARTED.values(), ids=NOT_STARTED)
def test_pods_whose_volumes_or_secrets_are_missing(message, answer):
    creating = {"name": "preflight", "state": {"waiting": {"reason": "PodInitializing"}}}
    pod = thing(
        "Pod",
        "demo-x-master-0",
        {"phase": "Pending", "conditions": [condition("PodScheduled")], "initContainerStatuses": [creating]},
    )
    says(explain(pods=[pod], events=[event(pod, "FailedMount", message)]), message[:40], answer)


@pytest.mark.parametrize(("reason", "message", "answer"), IMAGES.values(), ids=IMAGES)
def test_containers_that_do_not_start(reason, message, answer):
    waiting = {"name": "pytorch", "state": {"waiting": {"reason": reason, "message": message}}}
    pod = thing(
        "Pod",
        "demo-x-master-0",
        {"phase": "Pending", "conditions": [condition("PodScheduled")], "containerStatuses": [waiting]},
    )
    says(explain(pods=[pod]), reason, answer)


ENDED = {
    "memory": (over(137, reason="OOMKilled"), "more memory than its limit", "raise resources.limits.memory"),
    "settings": (over(2, "epochs = -1: must be positive\n"), "epochs = -1", "another try would end the same"),
    "not a number": (over(77, "the loss is nan"), "the loss is nan", "lower optimizer.lr"),
    "crash": (over(139), "segmentation fault", "logs/"),
    "full": (over(1, "OSError: [Errno 28] No space left on device"), "No space left", "the volume is full"),
    "apart": (
        over(138, "demo-x-master-0 runs, but port 23400 cannot be reached (no answer for 25 s): a NetworkPolicy, mesh"),
        "port 23400 cannot be reached",
        "let them reach each other on all ports",
    ),
    "wrong port": (
        over(138, "demo-x-master-0 runs, but port 23400 cannot be reached (connection refused for 25 s): its check"),
        "connection refused",
        "one global.training.peers.port",
    ),
    "killed as it starts": (
        over(1, "4 starts of this pod in a row were killed before training began, as the kernel does where"),
        "killed before training began",
        "raise global.training.resources.limits.memory",
    ),
    "a program that is killed as it starts": (
        over(1, "4 starts of this pod in a row were killed within 5 minutes, as the kernel does where"),
        "killed within 5 minutes",
        "raise global.training.resources.limits.memory",
    ),
    "TCP": (over(2, "no RDMA device is in this pod, so training would fall back to TCP"), "fall back to TCP", "RDMA"),
}


@pytest.mark.parametrize(("pod", "cause", "answer"), ENDED.values(), ids=ENDED)
def test_containers_that_ended(pod, cause, answer):
    says(explain(pods=[pod]), cause, answer)


OWNERS = {
    "MPIJob": ("mpijobs", "training.kubeflow.org/job-name", "Succeeded"),
    "Job": ("jobs", "batch.kubernetes.io/job-name", "Complete"),
    "TrainJob": (trainjobs.TRAINJOBS, trainjobs.JOBSET_NAME, "Complete"),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_what_a_retry_has_overcome_needs_no_remedy(kind):
    objects, label, state = OWNERS[kind]
    pod = over(138, "a rank was lost")
    pod["metadata"]["labels"] = {label: "demo-x"}
    for held, name, overcome in ((state, "demo-x", True), (state, "demo-y", False), ("Running", "demo-x", False)):
        text = explain(**{objects: [thing(kind, name, {"conditions": [condition(held)]})]}, pods=[pod])
        assert "because: a rank was lost" in text
        assert ("overcome by a retry" in text, "remedy" in text) == (overcome, not overcome), text


@pytest.mark.parametrize(
    ("failures", "phase", "index", "drops"),
    [(1, "Running", "0", True), (1, "Pending", "0", True), (1, "Succeeded", "0", False), (1, "Running", "1", False),
     (3, "Running", "0", False)],
)  # fmt: skip
def test_a_failed_launcher_needs_no_remedy_while_its_retry_runs_unless_it_fails_again_and_again(
    failures, phase, index, drops
):
    owner = [{"kind": "Job", "name": "demo-launcher", "uid": "j"}]

    def launcher(number: int, status: dict, index: str = "0") -> dict:
        own = {"creationTimestamp": f"2026-11-21T11:0{number}:00Z", "ownerReferences": owner}
        return thing("Pod", f"demo-launcher-{number}", status, labels={trainjobs.INDEX: index}, **own)

    status = over(138, "a worker was lost")["status"]
    pods = [launcher(number, status) for number in range(failures)]
    retry = launcher(9, {"phase": phase, "conditions": [condition("PodScheduled")]}, index)
    text = explain(pods=[retry, *pods])
    assert "because: a worker was lost" in text
    assert ("exit 138, tried again by demo-launcher-9" in text, "remedy" in text) == (drops, not drops), text


@pytest.mark.parametrize("there", [True, False])
def test_a_pod_whose_job_is_gone_needs_no_remedy(there):
    said = "preflight: waiting for 1 of 1 peers (demo-worker-0: its name does not resolve: the pod has not started)"
    pod = over(143, said)
    pod["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": "demo", "uid": "1" if there else "2"}]
    job = thing("PyTorchJob", "demo", {"conditions": [condition("Running")]})
    job["metadata"]["uid"] = "1"
    text = explain(**{"pytorchjobs.kubeflow.org": [job]}, pods=[pod])
    assert f"because: {said}" in text
    assert ("its job is gone" in text, "remedy" in text) == (not there, there), text


def test_whether_a_job_is_gone_that_may_not_be_listed_is_not_known():
    pod = over(138, "a rank was lost")
    pod["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": "demo", "uid": "1"}]
    text = explain(pods=[pod], refused=[{"kind": "pytorchjobs.kubeflow.org", "said": "forbidden"}])
    assert "its job is gone" not in text
    says(text, "a rank was lost", "the operator tries again")


def test_a_preflight_that_hands_its_failure_over():
    said = "/results is full: free space or enlarge the claim"
    preflight = {"name": "preflight", "state": {"terminated": {"exitCode": 0, "message": said}}}
    starting = {"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Pending", "conditions": [condition("PodScheduled")], "initContainerStatuses": [preflight]}
    status |= {"containerStatuses": [starting]}
    says(explain(pods=[thing("Pod", "demo-x-master-0", status)]), said, "remove what is not needed from that claim")
    preflight["state"]["terminated"]["message"] = ""
    assert "remedy" not in explain(pods=[thing("Pod", "demo-x-master-0", status)])


PREPARES = "prepare: waiting: there are no Kaggle credentials in the environment (retried in 40 s)"
WAITS_FOR_KEY = "preflight: waiting for /etc/trainyard/WANDB_API_KEY, a Secret that an operator creates, 590 s left"


@pytest.mark.parametrize(
    ("which", "said", "answer"),
    [
        ("containerStatuses", PREPARES, "without an upgrade"),
        ("initContainerStatuses", WAITS_FOR_KEY, "the line of its ExternalSecret"),
        ("containerStatuses", "prepare: train 12 of 1281167 images", ""),
    ],
    ids=["credentials", "secret of an operator", "at work"],
)
def test_what_a_container_that_runs_waits_for(monkeypatch, which, said, answer):
    monkeypatch.setattr(why.kube, "logs", lambda *_, **__: f"{said}\n")
    pod = thing(
        "Pod", "demo-dataset-0", {"phase": "Running", which: [{"name": "main", "state": {"running": {"a": 1}}}]}
    )
    text = explain(pods=[pod])
    if answer:
        says(text, said, answer)
    else:
        assert "because" not in text


def test_a_container_beside_the_main_one_says_nothing_but_its_own_failure(monkeypatch):
    monkeypatch.setattr(why.kube, "logs", lambda *_, **__: "daemon: ready\n")
    spec = {"initContainers": [{"name": "daemon", "restartPolicy": "Always"}, {"name": "preflight"}]}

    def said(phase: str, state: dict) -> str:
        beside = {"name": "daemon", "state": state}
        return explain(
            pods=[thing("Pod", "demo-x-master-0", {"phase": phase, "initContainerStatuses": [beside]}, spec)]
        )

    assert "because" not in said("Running", {"running": {"startedAt": OLD}})
    stopped = {"terminated": {"exitCode": 137, "reason": "Error"}}
    assert "because" not in said("Succeeded", stopped)
    says(
        said("Running", {"terminated": {"exitCode": 1, "message": "error: no /dev/nvidia0"}}), "no /dev/nvidia0", "log"
    )


def test_pods_that_a_node_gave_up():
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    says(explain(pods=[thing("Pod", "demo-x-worker-0", evicted)]), "Evicted", "the node's disk is full")
    starved = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    says(explain(pods=[thing("Pod", "demo-x-worker-0", starved)]), "memory", "global.training.resources.requests")
    preempted = {"phase": "Failed", "reason": "Preempted", "message": "Preempted in order to admit critical pod"}
    says(explain(pods=[thing("Pod", "demo-x-worker-0", preempted)]), "Preempted", "priorityClassName")
    refused = {"phase": "Failed", "reason": "TaintToleration", "message": "Predicate TaintToleration failed: taints"}
    says(explain(pods=[thing("Pod", "demo-x-worker-0", refused)]), "TaintToleration", "its operator makes another pod")
    job = thing("MPIJob", "demo-x", {"conditions": [condition("Running")]})
    of_mpi = [{"kind": "MPIJob", "name": "demo-x", "uid": job["metadata"]["uid"]}]
    worker = thing("Pod", "demo-x-worker-0", refused, ownerReferences=of_mpi)
    says(explain(mpijobs=[job], pods=[worker]), "TaintToleration", "kubectl delete pod demo-x-worker-0 -n")
    worker = thing("Pod", "demo-x-worker-0", evicted, ownerReferences=of_mpi)  # its job has failed
    says(explain(mpijobs=[job], pods=[worker]), "Evicted", "the node's disk is full")
    gone = thing("Pod", "demo-x-worker-0", {"phase": "Running"}, deletionTimestamp=OLD)
    says(explain(pods=[gone]), "its node does not answer", "kubectl delete pod --force")


TAINT = "kubectl taint nodes gpu-7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


def test_all_events_are_read_as_often_for_many_pods_as_for_few():
    def count(pods: int) -> int:
        many = [thing("Pod", f"demo-x-worker-{i}", {"phase": "Pending"}) for i in range(pods)]
        selector = {"selector": {"matchLabels": {"app.kubernetes.io/name": "filebrowser"}}}
        events = things.Counted(event(one, "FailedMount", "no such Secret") for one in many)
        said = explain(pods=many, events=events, **{"deployments.apps": [thing("Deployment", "files", {}, selector)]})
        assert said.count("because: no such Secret") == pods
        return events.read

    assert count(50) == count(2)


def test_logs_are_read_several_at_a_time(monkeypatch):
    both = threading.Barrier(2)

    def read(*_: Any, **__: Any) -> str:
        both.wait(60)  # passes when the other one reads, too
        return ""

    monkeypatch.setattr(why.kube, "logs", read)
    runs = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": OLD}}}]}
    assert "because" not in explain(pods=[thing("Pod", f"demo-x-worker-{i}", runs) for i in range(2)])


def test_a_kubelet_that_does_not_answer_is_named_before_its_node_counts_as_lost(monkeypatch):
    def read(*_: Any, **__: Any) -> str:
        raise UnreachableError("no answer")

    monkeypatch.setattr(why.kube, "logs", read)
    runs = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": OLD}}}]}
    said = explain(pods=[thing("Pod", "demo-x-worker-0", runs, {"nodeName": "gpu-7"})])
    assert "because: the kubelet of gpu-7 does not answer" in said
    assert "running, as far as is known" in said


def test_a_pod_that_terminates_for_ever_on_a_lost_node():
    zombie = thing("Pod", "demo-x-worker-0", {"phase": "Running"}, {"nodeName": "gpu-7"}, deletionTimestamp=OLD)
    said = explain(pods=[zombie])
    says(said, "its node does not answer (gpu-7)", TAINT)
    assert "if the machine is off or gone, and only then" in said


@pytest.mark.parametrize(
    ("status", "reason", "cause", "answer"),
    [
        ("False", "", "its node does not answer (gpu-7)", TAINT),  # as the node controller marks it
        ("False", "ContainersNotReady", "or a process in it does not end", "if the machine is off or gone, and only"),
        ("True", "", "its node gpu-7 answers", "its storage hangs, or a driver"),
    ],
)
def test_no_node_that_answers_is_taken_out_of_service(status, reason, cause, answer):
    held = {"phase": "Running", "conditions": [condition("Ready", status=status, reason=reason)]}
    said = explain(pods=[thing("Pod", "demo-x-worker-0", held, {"nodeName": "gpu-7"}, deletionTimestamp=OLD)])
    says(said, cause, answer)
    assert ("out-of-service" in said) is (status == "False")


@pytest.mark.parametrize(("phase", "node", "held"), [("Failed", "gpu-7", True), ("Pending", "", True),
                                                     ("Running", "gpu-7", False)])  # fmt: skip
def test_a_pod_that_waits_for_its_finalizers_alone(phase, node, held):
    tracked = {"deletionTimestamp": OLD, "finalizers": ["batch.kubernetes.io/job-tracking"]}
    said = explain(pods=[thing("Pod", "demo-node-0-0", {"phase": phase}, {"nodeName": node}, **tracked)])
    assert ("waits for its finalizers: batch.kubernetes.io/job-tracking" in said) is held
    assert ("its node does not answer" in said) is not held


def test_a_pod_whose_node_is_lost_and_that_kubernetes_still_waits_for():
    lives = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 300},
             {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 30}]  # fmt: skip

    def said(ready: str, tolerations: list[dict], reason: str = "NodeNotReady", told: str = "") -> str:
        status = {"phase": "Running", "conditions": [condition("Ready", status=ready, reason=told)]}
        pod = thing("Pod", "demo-x-worker-0", status, {"nodeName": "gpu-7", "tolerations": tolerations})
        return explain(pods=[pod], events=[event(pod, reason, "Node is not ready")])

    says(said("False", lives), "gpu-7 is not ready", TAINT)
    assert "deletes the pod after 30 s" in said("False", lives)
    assert "keeps the pod until the node is back" in said("False", [{"key": "node.kubernetes.io/not-ready"}])
    assert "keeps the pod until the node is back" in said("False", [{"operator": "Exists"}])
    short = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule", "tolerationSeconds": 1}]
    assert "deletes the pod after 30 s" in said("False", lives + short)
    assert "because" not in said("True", lives)  # the node is back
    assert "because" not in said("False", lives, reason="Unhealthy")
    assert "because" not in said("False", lives, told="ContainersNotReady")  # by its kubelet, so the node is back


def unbound(phase: str = "Pending", **more: Any) -> dict:
    spec = {"storageClassName": "fast", "accessModes": ["ReadWriteMany"]} | more.pop("spec", {})
    return thing("PersistentVolumeClaim", "demo-data", {"phase": phase}, spec, **more)


def test_a_pod_that_has_not_started_and_whose_node_is_lost():
    def said(ready: str, phase: str = "Pending") -> str:
        told = condition("Ready", status=ready) | {"lastTransitionTime": OLD}
        node = thing("Node", "gpu-7", {"conditions": [told]})
        creating = {"name": "pytorch", "state": {"waiting": {"reason": "ContainerCreating"}}}
        held = {"phase": phase, "conditions": [condition("Ready", status="False", reason="ContainersNotReady")]}
        pod = thing("Pod", "demo-x-worker-0", held | {"containerStatuses": [creating]}, {"nodeName": "gpu-7"})
        pulling = event(pod, "Pulling", 'Pulling image "r/i:1"', "Normal")
        return explain(pods=[pod], events=[pulling], nodes=[node])

    says(said("Unknown"), f"its node gpu-7 has not answered since {OLD}: Kubernetes deletes the pod after 0 s", TAINT)
    for ready in ("True", "False"):  # the kubelet's own word, as while the network plugin starts
        assert "its node pulls the image" in said(ready)
    assert "because" not in said("Unknown", "Running")


@pytest.mark.parametrize(("message", "answer"), PENDING.values(), ids=PENDING)
def test_claims_without_a_volume(message, answer):
    claim = unbound()
    says(explain(claims=[claim], events=[event(claim, "ProvisioningFailed", message)]), message[:30], answer)


def test_claims_that_wait_or_go():
    claim = unbound()
    first = event(claim, "WaitForFirstConsumer", "waiting for first consumer", "Normal")
    assert "waits for the first pod" in explain(claims=[claim], events=[first])
    none = "no persistent volumes available for this claim and no storage class is set"
    by_hand = unbound(spec={"storageClassName": ""})
    says(
        explain(claims=[by_hand], events=[event(by_hand, "FailedBinding", none, "Normal")]), none, "name a StorageClass"
    )
    says(explain(claims=[unbound(spec={"storageClassName": None})]), "no default StorageClass", "storageClass")
    says(
        explain(claims=[unbound("Lost", spec={"volumeName": "pv-1"})]), "its volume pv-1 is gone", "restore the volume"
    )
    says(explain(claims=[unbound("Bound", deletionTimestamp=OLD)]), "pods use it still", "wait until the pods")
    held = unbound("Bound", spec={"volumeName": "pv-1"}, deletionTimestamp=OLD)
    says(explain(claims=[held]), "pods use it still", "if what it holds is wanted, first kubectl patch pv pv-1 -p")
    outside = event(claim, "ExternalProvisioning", "Waiting for a volume by nfs.csi.k8s.io", "Normal")
    says(explain(claims=[claim], events=[outside]), "nfs.csi.k8s.io", "the provisioner that it names is not running")


def test_a_claim_of_somebody_else_that_pods_wait_for_has_a_line():
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "demo-data"}}, {"name": "tmp", "emptyDir": {}}]
    pod = thing("Pod", "demo-x-master-0", {"phase": "Pending"}, {"volumes": volumes})
    other = thing("PersistentVolumeClaim", "unused", {"phase": "Lost"})
    gone = unbound("Lost", spec={"volumeName": "pv-1"})
    text = explain(pods=[pod], claims_of_namespace=[gone, other])
    says(text, "its volume pv-1 is gone", "restore the volume")
    assert "unused" not in text
    assert explain(pods=[pod], claims=[gone], claims_of_namespace=[gone]).count("is gone") == 1
    assert "persistentvolumeclaim/" not in explain(pods=[pod], claims_of_namespace=[unbound("Bound")])


@pytest.mark.parametrize(("manager", "told"), [("kubectl-patch", True), ("helm", False), ("Helm", False)])
def test_a_claim_that_was_enlarged_by_hand(manager, told):
    fields = {"f:spec": {"f:resources": {"f:requests": {".": {}, "f:storage": {}}}}}
    entry = {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}
    spec = {"resources": {"requests": {"storage": "200Mi"}}}
    owner = {"meta.helm.sh/release-name": "demo"}
    claim = unbound("Bound", spec=spec, managedFields=[entry], annotations=owner)
    text = explain(claims=[claim], pods=[thing("Pod", "p", {"phase": "Running"})])
    assert ("its size, 200Mi, was set by kubectl-patch: values must say it too" in text) is told
    assert "remedy" not in text


def test_a_kept_claim_that_is_anothers():
    owner = {"meta.helm.sh/release-name": "other"}
    text = explain(claims_of_its_name=[unbound("Bound", annotations=owner)])
    says(text, "it belongs to the release other", "global.storage.data.existingClaim: demo-data")
    says(explain(claims_of_its_name=[unbound("Bound")]), "not made by Helm", "existingClaim")
    mine = unbound("Bound", annotations={"meta.helm.sh/release-name": "demo"})
    assert claims.others("demo", [mine]) == []


def failed(message: str, reason: str = "PyTorchJobFailed") -> dict:
    return thing("PyTorchJob", "demo-x", {"conditions": [condition("Failed", message, reason=reason)]})


def test_jobs_that_failed():
    says(explain(pytorchjobs=[failed("Job demo-x has failed because it was active longer than specified deadline")]),
         "active longer", "activeDeadlineSeconds is over")  # fmt: skip
    says(explain(pytorchjobs=[failed("Job demo-x has failed because it has reached the specified backoff limit")]),
         "backoff limit", "see its pods below")  # fmt: skip
    policy = thing(
        "Job", "demo-dataset-1", {"conditions": [condition("Failed", "exit code 2", reason="PodFailurePolicy")]}
    )
    says(explain(jobs=[policy]), "exit code 2", "not cured by another try")
    late = thing("Job", "demo-dataset-1", {"conditions": [condition("Failed", "too long", reason="DeadlineExceeded")]})
    says(explain(jobs=[late]), "too long", "dataset.activeDeadlineSeconds")


@pytest.mark.parametrize(("workers", "answers"), [({"active": 1}, False), ({}, True)])
def test_a_running_job_with_a_pod_that_cannot_be_recreated(workers, answers):
    status = {
        "conditions": [condition("Created"), condition("Running")],
        "replicaStatuses": {"Master": {"active": 1}, "Worker": workers},
    }
    job = thing("PyTorchJob", "demo-x", status, {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {}}})
    message, answer = NOT_CREATED["quota"]
    text = explain(pytorchjobs=[job], events=[event(job, "FailedCreatePod", message)])
    assert (answer in text) is answers


@pytest.mark.parametrize("kind", ["PyTorchJob", "MPIJob", "Job"])
@pytest.mark.parametrize(("made", "over"), [("2026-11-21T11:30:00Z", True), ("2026-11-21T10:30:00Z", False)])
def test_what_kept_pods_from_being_made_is_over_when_one_was_made_since(kind, made, over):
    """The event is of 11:00, and stays for an hour."""
    job = thing(kind, "demo-x", {"conditions": [condition("Created")]})
    owners = [{"kind": kind, "name": "demo-x", "uid": job["metadata"]["uid"]}]
    pod = thing("Pod", "demo-x-worker-0", {"phase": "Pending"}, creationTimestamp=made, ownerReferences=owners)
    message, answer = NOT_CREATED["quota"]
    text = explain(jobs=[job], pods=[pod], events=[event(job, "FailedCreate", message)])
    assert (answer in text) is not over
    pod["metadata"]["ownerReferences"] = []
    assert answer in explain(jobs=[job], pods=[pod], events=[event(job, "FailedCreate", message)])


EXITED = "Pod: vision.demo-x-master-0 exited with code {}"
KILLED = "Error pod demo-x-master-0 container pytorch exitCode: 137 terminated message: "


def recreated(held: str, *events: tuple[str, str, str, int]) -> str:
    """Of a PyTorchJob whose present pod looks well: what its events tell, each a reason, message, kind and count."""
    job = thing("PyTorchJob", "demo-x", {"conditions": [condition("Created"), condition(held)]})
    now = thing("Pod", "demo-x-master-0", {"phase": "Running"})
    told = [event(job, reason, text, kind) | {"count": count} for reason, text, kind, count in events]
    return explain(pytorchjobs=[job], pods=[now], events=told)


@pytest.mark.parametrize("held", ["Running", "Restarting"])
def test_a_pod_that_is_killed_for_its_memory_and_recreated_again_and_again(held):
    restarting = ("PyTorchJobRestarting", "PyTorchJob demo-x is restarting because 1 Master", "Warning", 16)
    deaths = ("ExitedWithCode", EXITED.format(137), "Normal", 16)
    made = ("SuccessfulCreatePod", "Created pod: demo-x-master-0", "Normal", 9)  # an end is told twice
    text = recreated(held, made, deaths, ("OOMKilled", KILLED, "Warning", 1), restarting)
    assert re.search(rf"pytorchjob/demo-x +{held}, pods recreated 8 times", text)
    says(text, "demo-x-master-0 pytorch was OOMKilled", "raise resources.limits.memory")


def test_a_pod_that_was_recreated_is_named_and_has_a_remedy_once_that_is_no_accident():
    once = recreated("Running", ("ExitedWithCode", EXITED.format(137), "Normal", 1))
    assert "pods recreated once" in once
    assert "remedy" not in once
    often = recreated("Running", ("ExitedWithCode", EXITED.format(137), "Normal", 3))
    says(often, "demo-x-master-0 ended with 137", "raise resources.limits.memory, unless its node")
    broken = ("Error", KILLED.replace("137", "201") + "error: a GPU failed", "Warning", 3)
    failing = recreated("Running", ("ExitedWithCode", EXITED.format(201), "Normal", 3), broken)
    says(failing, "a GPU failed", "nvidia-smi")


def test_pods_that_lost_another_or_were_stopped_need_no_remedy():
    for code in (138, 143):
        text = recreated("Running", ("ExitedWithCode", EXITED.format(code), "Normal", 9))
        assert f"ended with {code}" in text
        assert "remedy" not in text
    first = recreated("Running", ("ExitedWithCode", EXITED.format(0), "Normal", 1))
    assert "because" not in first


def test_jobs_that_nobody_runs():
    job = thing("MPIJob", "demo-y")
    says(explain(mpijobs=[job]), "no operator has looked at it in 3600 s", "mpi-operator is not running")
    assert "remedy" not in explain(mpijobs=[thing("MPIJob", "demo-y", creationTimestamp=YOUNG)])
    says(explain(missing_kinds=[{"kind": "mpijobs.kubeflow.org"}]), "does not know mpijobs", "install mpi-operator")


def test_operators_that_do_not_fit():
    mpi, torch = "mpijobs.kubeflow.org", "pytorchjobs.kubeflow.org"
    says(explain(crds=[definition(mpi, "v1")]), "it serves v1, and the chart renders v2beta1", "mpi-operator 0.8.2")
    old = definition(torch, "v1", "nprocPerNode", "elasticPolicy.rdzvConf", "runPolicy.suspend")
    says(explain(crds=[old]), "does not know spec.runPolicy.managedBy", "update the operator: training-operator 1.9.4")
    pod = thing("Pod", "p", {"phase": "Running"})
    assert "remedy" not in explain(
        crds=[definition(kind, *_flat(crds.NEEDED[kind])) for kind in (mpi, torch)], pods=[pod]
    )


def _flat(needed: tuple) -> tuple:
    return (needed[0], *needed[1])


@pytest.mark.parametrize(("kind", "file"), [("mpijobs.kubeflow.org", "mpijob-kubeflow-v2beta1"),
                                            ("pytorchjobs.kubeflow.org", "pytorchjob-kubeflow-v1")])  # fmt: skip
def test_the_tested_operators_fit(kind, file):
    schema = json.loads((helm.ROOT / "build" / "schemas" / f"{file}.json").read_text())
    version = {"name": crds.NEEDED[kind][0], "served": True, "schema": {"openAPIV3Schema": schema}}
    assert crds.fit({"metadata": {"name": kind}, "spec": {"versions": [version]}}) is None


def queued(message: str = "", owner: str = "uid-demo-x") -> str:
    job = thing(
        "PyTorchJob", "demo-x", spec={"runPolicy": {"suspend": True}}, labels={"kueue.x-k8s.io/queue-name": "q"}
    )
    waits = {"conditions": [condition("QuotaReserved", message, "False")]}
    return explain(pytorchjobs=[job], workloads=[thing("Workload", "w", waits, ownerReferences=[{"uid": owner}])])


def test_jobs_in_a_queue():
    quota = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor h200"
    says(queued(quota), "insufficient unused quota", "Kueue's queue has no room now")
    says(queued("LocalQueue q doesn't exist"), "LocalQueue q", "global.scheduling.queue")
    says(queued(owner="uid-else"), "Kueue has made no Workload", "is Kueue running")
    held = thing("PyTorchJob", "demo-x", {"conditions": [condition("Suspended", "PyTorchJob demo-x is suspended.")]})
    text = explain(pytorchjobs=[held])
    assert "is suspended" in text
    assert "remedy" not in text


def test_a_queue_that_may_not_be_read_is_not_said_to_be_empty():
    labels = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "urgent"}
    held = thing("PyTorchJob", "demo-x", {"conditions": [condition("Suspended")]}, labels=labels)
    refused = [{"kind": "workloads.kueue.x-k8s.io", "said": "forbidden"}]
    for classes in ([], [thing("WorkloadPriorityClass", "urgent")]):
        text = explain(pytorchjobs=[held], refused=refused, classes=classes)
        assert "this user may not read what Kueue says of it" in text
        assert "remedy" not in text


PREEMPTED = (
    "Preempted to accommodate a workload (UID: uid-other, JobUID: j) due to prioritization in the ClusterQueue; "
    "preemptor path: /all; preemptee path: /all"
)


def workload(*held: dict, owner: str = "demo-x", **spec: Any) -> dict:
    owners = [{"uid": f"uid-{owner}", "kind": "Job", "name": owner}]
    name = "w" if owner == "demo-x" else owner
    return thing("Workload", name, {"conditions": list(held)}, spec, ownerReferences=owners)


@pytest.mark.parametrize("kind", ["PyTorchJob", "MPIJob", "Job", "TrainJob"])
def test_a_job_of_any_kind_that_gave_way(kind):
    spec = {"suspend": True} if kind in ("Job", "TrainJob") else {"runPolicy": {"suspend": True}}
    mine = workload(condition("Evicted", PREEMPTED, reason="Preempted"), condition("QuotaReserved", "more", "False"))
    text = explain(jobs=[thing(kind, "demo-x", spec=spec)], workloads=[mine, workload(owner="other")])
    assert f"{kind.lower()}/demo-x  preempted, queued again" in text
    says(text, "preemptee path: /all (job/other); more", "global.scheduling.queuePriority says who comes first")


def test_a_job_that_gives_way_and_whose_pods_have_not_ended():
    """Kueue takes its admission back when they have."""
    late = {"lastTransitionTime": OLD}
    held = [condition(kind, f"{kind} of old") | late for kind in ("Admitted", "QuotaReserved")]
    mine = workload(*held, condition("Evicted", PREEMPTED, reason="Preempted"))
    text = explain(jobs=[thing("TrainJob", "demo-x", spec={"suspend": True})], workloads=[mine])
    assert "trainjob/demo-x  preempted, queued again" in text
    assert "preemptee path: /all; its pods are being stopped" in text


def test_what_kueue_does_with_a_job_beside_waiting():
    def said(of: dict, kind: str = "PyTorchJob", labels: dict | None = None, **more: Any) -> str:
        held = thing(kind, "demo-x", {"conditions": [condition("Suspended")]}, labels=labels or {})
        return explain(pytorchjobs=[held], workloads=[of] if of else [], **more)

    late = condition("Admitted") | {"lastTransitionTime": OLD}
    says(said(workload(late), "MPIJob"), "has not resumed it", "kubectl apply -f examples/kueue/mpi-operator.yaml")
    says(said(workload(late)), "Kueue admitted it 3600 s ago", "see its operator's log")
    assert "remedy" not in said(workload(late | {"lastTransitionTime": YOUNG}))
    stopped = condition("Evicted", "The workload is deactivated", reason="Deactivated")
    held_back = workload(stopped, active=False)
    held_back["metadata"]["namespace"] = "vision"
    says(said(held_back), "is deactivated", "kubectl patch workload/w --type merge")
    assert re.search("kubectl patch workload/w .* -n vision$", said(held_back), re.M)
    checked = workload(condition("QuotaReserved"))
    checked["status"]["admissionChecks"] = [{"name": "nodes", "state": "Pending", "message": "2 nodes are made"}]
    assert "waits for the check nodes: 2 nodes are made" in said(checked)
    labels = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "urgent"}
    says(said({}, labels=labels, classes=[]), "no WorkloadPriorityClass is named urgent", "queuePriority")
    says(said({}, labels=labels, classes=[thing("WorkloadPriorityClass", "urgent")]), "made no Workload", "is Kueue")


def test_the_word_of_a_launcher_is_what_its_ranks_said():
    box = "launch: told to stop\nerror: stopped on SIGTERM at step 51; saved\n----\n  Exit code:    143\n-----\n"
    assert why.last_word(box) == "stopped on SIGTERM at step 51; saved"
    assert why.last_word("one line\n\n----\n") == "one line"
    assert why.last_word("---") == "---"


def test_secrets_of_a_store():
    def secret(message: str, status: str = "False") -> str:
        return explain(
            stores=[thing("ExternalSecret", "demo-wandb", {"conditions": [condition("Ready", message, status)]})]
        )

    says(secret('could not get ClusterSecretStore "vault", not found'), "vault", "secrets.external.store")
    says(secret("error retrieving secret: Secret does not exist"), "does not exist", "correct remoteKey or properties")
    says(explain(stores=[thing("ExternalSecret", "demo-wandb")]), "no operator", "install External Secrets Operator")
    assert "remedy" not in explain(stores=[thing("ExternalSecret", "s", {"conditions": [condition("Ready")]})],
                                   pods=[thing("Pod", "p", {"phase": "Running"})])  # fmt: skip


def test_a_policy_is_named_without_a_promise():
    text = explain(
        networkpolicies=[thing("NetworkPolicy", "demo-pytorchjob")], pods=[thing("Pod", "p", {"phase": "Running"})]
    )
    assert "whether it is enforced depends on the cluster's network plugin" in text
    assert "remedy" not in text


def test_what_runs_needs_no_remedy():
    running = {
        "phase": "Running",
        "containerStatuses": [{"name": "sleeper", "state": {"waiting": {"reason": "ContainerCreating"}}}],
    }
    job = thing("PyTorchJob", "demo-x", {"conditions": [condition("Running"), condition("Created")]})
    text = explain(pytorchjobs=[job], pods=[thing("Pod", "demo-x-master-0", running)], claims=[unbound("Bound")])
    assert "remedy" not in text


WAITS = "preflight: waiting for /data/x/manifest.json (no shard is finished yet), 3600 s left; see `kubectl get jobs`"


@pytest.mark.parametrize(
    ("jobs", "answer"),
    [
        ([], remedies.UNPREPARED),
        ([thing("Job", "demo-dataset", labels={"app.kubernetes.io/name": "dataset"})], ""),
        (
            [
                thing(
                    "Job",
                    "demo-dataset",
                    {"conditions": [condition("Failed")]},
                    labels={"app.kubernetes.io/name": "dataset"},
                )
            ],
            remedies.UNPREPARED,
        ),
    ],
    ids=["no job", "at work", "failed"],
)
def test_a_dataset_that_nobody_prepares(jobs, answer):
    waits = Finding("pod/demo-x-master-0 preflight", "running", WAITS)
    other = Finding("pod/demo-x-master-0 pytorch", "running", "preflight: 2 pods reach each other")
    assert why.add_dataset_remedy([waits, other], jobs) == [waits._replace(remedy=answer), other]


def test_a_release_that_is_not_there():
    says(explain(), "namespace vision holds nothing that runs for it", "helm list -n vision")


@pytest.mark.parametrize(("message", "answer"), FURTHER.items())
def test_further_messages(message, answer):
    assert answer in remedies.remedy(message)


def test_the_schedulers_word_on_preemption_is_no_preemption():
    odd = "0/3 nodes are available: 3 strange. preemption: 0/3 nodes are available: 3 No preemption victims found."
    assert remedies.remedy(odd) == ""


def test_every_remedy_answers_some_message_of_this_file():
    said = [message for table in (NOT_CREATED, NOT_PLACED, NOT_STARTED, PENDING) for message, _ in table.values()]
    said += [f"{reason}: {message}" for reason, message, _ in IMAGES.values()]
    said += [pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] for pod, _, _ in ENDED.values()]
    answers = {remedies.remedy(message) for message in (*said, *FURTHER)}
    assert [pattern for pattern, answer in remedies.REMEDIES if answer not in answers] == []


def test_what_pods_say_steers_no_terminal():
    """Messages and logs hold names out of archives, which strangers wrote."""
    finding = Finding("pod/p", "exit 2", "\x1b]0;owned\x07\x9b2J\u202egpj.JPEG cannot be decoded\nsecond line")
    assert why.show([finding]).splitlines()[1:] == [
        r"    because: \x1b]0;owned\x07\x9b2J\u202egpj.JPEG cannot be decoded", "second line",
    ]  # fmt: skip
