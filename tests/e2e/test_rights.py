"""What the API server says of deploy/roles.yaml: a team may do what its releases and commands need, and no more."""

import secrets
from collections.abc import Iterator

import pytest
import yaml

from tests.charts import test_administrator
from tests.e2e.cluster import kubectl, until
from tests.e2e.owners import LABELS

pytestmark = [pytest.mark.e2e, pytest.mark.takes(5)]
TEAM, CLUSTER = f"vision-{secrets.token_hex(3)}", "*"
# verb, kind, namespace: what `up`, `why`, `follow` and `fetch` ask for, then what nobody has been given
MAY = (
    ("get", "namespaces", TEAM), ("create", "secrets", TEAM), ("create", "pytorchjobs.kubeflow.org", TEAM),
    ("patch", "mpijobs.kubeflow.org", TEAM), ("delete", "trainjobs.trainer.kubeflow.org", TEAM),
    ("update", "persistentvolumeclaims", TEAM), ("watch", "pods", TEAM), ("get", "pods/log", TEAM),
    ("create", "pods/exec", TEAM), ("list", "events", TEAM), ("list", "networkpolicies.networking.k8s.io", TEAM),
    ("list", "workloads.kueue.x-k8s.io", TEAM), ("list", "nodes", CLUSTER), ("list", "pods", CLUSTER),
)  # fmt: skip
MAY_NOT = (
    ("list", "secrets", CLUSTER), ("list", "secrets", "default"), ("get", "configmaps", "kube-system"),
    ("create", "pods", "default"), ("create", "pytorchjobs.kubeflow.org", CLUSTER), ("patch", "namespaces", TEAM),
    ("create", "namespaces", CLUSTER), ("patch", "nodes", CLUSTER), ("get", "nodes/proxy", CLUSTER),
    ("create", "roles.rbac.authorization.k8s.io", TEAM), ("create", "rolebindings.rbac.authorization.k8s.io", TEAM),
    ("create", "serviceaccounts/token", TEAM), ("escalate", "roles.rbac.authorization.k8s.io", TEAM),
)  # fmt: skip


@pytest.fixture(scope="module")
def team() -> Iterator[str]:
    """A namespace with the roles of the file, granted to the group of its name; gone at the end."""
    text = test_administrator.FILE.read_text().replace("trainyard-doctor", f"trainyard-doctor-{TEAM}")
    roles = list(yaml.safe_load_all(text.replace("vision", TEAM)))
    for one in roles:
        one["metadata"]["labels"] = LABELS
    everything = yaml.safe_dump_all(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": LABELS}}, *roles]
    )
    kubectl("apply", "-f", "-", stdin=everything)
    group = f"{TEAM}-engineers"
    # the API server reads roles from a cache, which may lag behind: what is granted last is the ClusterRoleBinding
    until("the roles count", lambda: all(answers(group, (MAY[0], MAY[-1])).values()))
    yield group
    kubectl("delete", "--wait=false", "-f", "-", stdin=everything)


def answers(group: str, asked: tuple[tuple[str, str, str], ...]) -> dict[tuple[str, str, str], bool]:
    """Ask the API server whether a member of a group may do these things."""
    reviews = []
    for verb, kind, namespace in asked:
        plural, _, api = kind.partition(".")
        resource, _, part = plural.partition("/")
        what = {"verb": verb, "group": api, "resource": resource, "subresource": part}
        where = {} if namespace == CLUSTER else {"namespace": namespace}
        spec = {"user": "ada", "groups": [group, "system:authenticated"], "resourceAttributes": what | where}
        kind_of = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        reviews.append(kind_of | {"spec": spec})
    said = kubectl("create", "-f", "-", "-o", r'jsonpath={.status.allowed}{"\n"}', stdin=yaml.safe_dump_all(reviews))
    return dict(zip(asked, (line == "true" for line in said.split()), strict=True))


def test_a_team_may_do_what_its_releases_and_commands_need(team):
    assert [one for one, allowed in answers(team, MAY).items() if not allowed] == []


def test_a_team_may_do_nothing_beyond(team):
    assert [one for one, allowed in answers(team, MAY_NOT).items() if allowed] == []


def test_without_the_roles_nobody_may_do_it(team):
    assert not any(answers("strangers", MAY).values())
