"""Limits of a pod are enforced by the node's cgroups, of either version."""

import json

import pytest

from tests.e2e.cluster import OWN, get, kubectl, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not OWN, reason="it runs an image of the one-node cluster's own"),
]
# 256 MiB in all, said step by step
GREEDY = """
import time
held = []
for i in range(16):
    held.append(b"x" * (16 << 20))
    print(len(held) * 16, flush=True)
time.sleep(3600)
"""
# what the kernel was told: quota and period of v2, or of v1
QUOTA = """
from pathlib import Path
v2, v1 = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu")
files = [v2] if v2.exists() else [v1 / "cpu.cfs_quota_us", v1 / "cpu.cfs_period_us"]
quota, period = " ".join(file.read_text() for file in files).split()
print(int(quota) / int(period))
"""


def run(namespace: str, name: str, code: str, **limits: str) -> dict:
    """Run Python in a pod with these limits, and return how its container ended."""
    container = {
        "name": name,
        "image": "localhost/trainyard-node/base:1",
        "command": ["python3", "-c", code],
        "resources": {"limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    rights = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": rights, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod))

    def ended() -> dict:
        (pod,) = get("pods", namespace, fields=f"metadata.name={name}")
        (status,) = pod["status"].get("containerStatuses") or [{"state": {}}]
        return status["state"].get("terminated", {})

    return until(lambda: f"pod {name} ends", ended)


def test_a_pod_above_its_memory_limit_is_killed(namespace):
    ended = run(namespace, "greedy", GREEDY, memory="64Mi")
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    held = [int(line) for line in kubectl("logs", "greedy", "-n", namespace).split()]
    assert max(held, default=0) < 64


def test_a_pods_processor_limit_is_the_kernels(namespace):
    ended = run(namespace, "slow", QUOTA, cpu="250m", memory="64Mi")
    assert ended["exitCode"] == 0
    assert float(kubectl("logs", "slow", "-n", namespace)) == 0.25
