"""A run uninstalled in the middle continues from its checkpoint; environment and secrets reach every MPI rank."""

import json
import re

import pytest

from tests.e2e import cluster, gated
from tests.e2e.cluster import get, kubectl, log, until
from tests.e2e.gated import Gate

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(70)]
RELEASE = "stop"
FIRST = 14  # steps after which it is held: beyond a checkpoint
KEY = "a-key-that-is-not-one"
SETTINGS = [
    "--set", "pytorchjob.enabled=false", "--set", "mpijob.runPolicy.suspend=false",
    "--set", "global.training.config.max_steps=40,global.training.config.batch.global=192",  # beyond the first epoch
    "--set", "global.training.config.checkpoint.every_steps=10",
    "--set", "global.training.config.wandb.mode=off",
    "--set", "global.secrets.wandb.existingSecret=wandb",
    "--set", "global.training.env[0].name=TRAINYARD_PROBE,global.training.env[0].value=from values",
    *gated.settings(FIRST, env=3),
]  # fmt: skip


def progress(namespace: str) -> str:
    """Return the newest launcher's log, or nothing before it runs."""
    pods = get("pods", namespace, "training.kubeflow.org/job-role=launcher")
    newest = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    return log(newest["metadata"]["name"], namespace) if newest else ""


def steps_done(namespace: str) -> int:
    """Return the newest step that the launcher's log tells of."""
    return max((int(step) for step in re.findall(r"step +(\d+)/", progress(namespace))), default=0)


def ranks_environment(namespace: str, pod: str) -> list[dict]:
    """Return the environment of each rank that runs in a pod, and the secret files that it sees."""
    code = (
        "import json, os, pathlib\n"
        "for p in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    try: argv = (p / 'cmdline').read_bytes().split(b'\\0')\n"
        "    except OSError: continue\n"
        "    if b'trainers.hvd' not in argv or not argv[0].endswith((b'python', b'python3', b'python3.11')): continue\n"
        "    env = dict(e.split('=', 1) for e in (p / 'environ').read_text().split('\\0') if '=' in e)\n"
        "    if 'OMPI_COMM_WORLD_RANK' not in env: continue\n"
        "    key = pathlib.Path('/etc/trainyard/secrets/wandb/WANDB_API_KEY').read_text()\n"
        "    print(json.dumps({'rank': env['OMPI_COMM_WORLD_RANK'], 'probe': env.get('TRAINYARD_PROBE'), 'key': key,"
        " 'argv': [a.decode() for a in argv]}))\n"
    )
    out = kubectl("exec", pod, "-n", namespace, "--", "python", "-c", code)
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def running(namespace, archive, image, install):
    """An MPIJob that has saved a checkpoint and still trains."""
    kubectl("create", "secret", "generic", "wandb", "-n", namespace, f"--from-literal=WANDB_API_KEY={KEY}")
    gate = Gate(namespace, image, FIRST)
    install(RELEASE, namespace, *SETTINGS)
    gate.stand(f"{RELEASE}-results")
    until("a checkpoint", lambda: steps_done(namespace) > 12)
    return gate


def test_environment_and_secrets_reach_every_mpi_rank(running):
    workers = get("pods", running.namespace, "training.kubeflow.org/job-role=worker")
    found = [rank for pod in workers for rank in ranks_environment(running.namespace, pod["metadata"]["name"])]
    assert sorted(int(rank["rank"]) for rank in found) == [0, 1, 2, 3]
    for rank in found:
        assert rank["probe"] == "from values"
        assert rank["key"] == KEY
        assert KEY not in " ".join(rank["argv"])


def test_a_run_uninstalled_in_the_middle_continues_from_its_checkpoint(running, install):
    space, own = running.namespace, f"app.kubernetes.io/instance={RELEASE}"
    cluster.helm("uninstall", RELEASE, "-n", space)
    until("pods gone", lambda: running.creep() and not get("pods", space, own))
    install(RELEASE, space, *SETTINGS)
    running.open()
    cluster.follow(RELEASE, space)
    assert "resumed at step" in progress(space)
    # The operator removes the workers meanwhile
    logs = kubectl("logs", "-n", space, "-l", own, "--all-containers", "--tail=-1", "--ignore-errors")
    assert "step" in logs
    assert KEY not in logs
