"""trainyard why: what it says of the file browser's Deployment, with objects as the API shows them."""

from tests.util.explained import condition, event, explain, says, thing

LABELS = {"app.kubernetes.io/name": "filebrowser", "app.kubernetes.io/instance": "demo"}
SPEC = {"selector": {"matchLabels": LABELS}}
REFUSED = "Readiness probe failed: dial tcp 10.88.0.7:8080: connect: connection refused"


def deployment(*conditions: dict) -> dict:
    return thing("Deployment", "demo-filebrowser", {"conditions": list(conditions)}, SPEC)


def pod(state: dict, phase: str = "Running") -> dict:
    status = {"phase": phase, "containerStatuses": [{"name": "filebrowser", "state": state}]}
    return thing("Pod", "demo-filebrowser-x", status, labels=LABELS)


def test_a_page_that_is_served_needs_nothing():
    said = explain(**{"deployments.apps": [deployment(condition("Available"))], "pods": [pod({"running": {}})]})
    assert said.splitlines() == ["deployment/demo-filebrowser  Available", "pod/demo-filebrowser-x       Running"]


def test_pods_that_a_namespace_refuses_are_named():
    text = 'pods "demo-filebrowser-x" is forbidden: exceeded quota: team, requested: requests.memory=128Mi'
    said = explain(**{"deployments.apps": [deployment(condition("ReplicaFailure", text))]})
    says(said, "exceeded quota", "ResourceQuota is used up")


def test_a_server_that_listens_elsewhere_is_named():
    one = pod({"running": {}})
    waiting = deployment(condition("Available", status="False"))
    said = explain(**{"deployments.apps": [waiting], "pods": [one], "events": [event(one, "Unhealthy", REFUSED)]})
    says(said, "connection refused", "filebrowser.port")


def test_a_pod_that_cannot_start_has_a_cause_of_its_own():
    one = pod({"waiting": {"reason": "ContainerCreating"}}, "Pending")
    missing = event(one, "FailedMount", 'MountVolume.SetUp failed for volume "password" : secret "page" not found')
    said = explain(**{"deployments.apps": [deployment()], "pods": [one], "events": [missing]})
    says(said, 'secret "page" not found', "create that Secret")
    assert "deployment/demo-filebrowser  not ready\n" in said
