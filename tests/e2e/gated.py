"""Runs that a test pauses at a step and continues: settings for the chart, and a pod that opens their gate."""

import json
from pathlib import Path

from tests.e2e.cluster import get, kubectl, until

FOLDER = Path(__file__).parent / "mounted"  # what PYTHONPATH names where such a run is trained without a cluster
# by default a run that a busy machine holds at a step for a minute would be ended as one that hangs
CONFIG: dict[str, object] = {"model.name": "gate:Net", "model.zero_init_last_bn": False, "comm.hang_seconds": 3600}
GATE = "/results/gate"


def settings(first: int, env: int) -> list[str]:
    """Return settings of the chart for runs that wait after their first steps; their environment has `env` entries."""
    values = {
        "extraVolumes[0].name": "gate",
        "extraVolumes[0].configMap.name": "gate",
        "extraVolumeMounts[0].name": "gate",
        "extraVolumeMounts[0].mountPath": "/gate",
        f"env[{env}].name": "PYTHONPATH",
        f"env[{env}].value": "/gate",
        f"env[{env + 1}].name": "GATE",
        f"env[{env + 1}].value": GATE,
        f"env[{env + 2}].name": "GATE_STEPS",
        f"env[{env + 2}].value": str(first),
        **{f"config.{key}": value for key, value in CONFIG.items()},
        "config.log.console_seconds": 0.001,  # every step, so that the log tells where a run is held
    }
    flags = {True: "--set-string", False: "--set-json"}
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return [part for key, value in values.items()
            for part in (flags[isinstance(value, str)], f"global.training.{key}={told[key]}")]  # fmt: skip


class Gate:
    """The gate of all runs on a results claim, opened through a pod beside them."""

    def __init__(self, namespace: str, image: dict[str, str], first: int):
        self.namespace, self.image, self.steps = namespace, image, first
        module = (FOLDER / "gate.py").read_text()
        what = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gate"}, "data": {"gate.py": module}}
        kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(what))

    def stand(self, claim: str) -> None:
        """Start the pod, on the claim that a release has made."""
        rights = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
                  "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
        container = {
            "name": "gate",
            "image": f"{self.image['registry']}/trainyard-pytorch:{self.image['tag']}",
            "command": ["sleep", "infinity"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "results", "mountPath": "/results"}],
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": rights,
            "containers": [container],
            "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": claim}}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gate"}, "spec": spec}
        kubectl("apply", "-n", self.namespace, "-f", "-", stdin=json.dumps(pod))
        until("the gate's pod runs", lambda: self._phase() == "Running")

    def _phase(self) -> str:
        found = get("pods", self.namespace, fields="metadata.name=gate")
        return found[0]["status"].get("phase", "") if found else ""

    def allow(self, steps: float) -> None:
        """Let all runs make so many steps, counted from their first."""
        self.steps = steps
        command = f"echo {steps} > {GATE}.new && mv {GATE}.new {GATE}"
        kubectl("exec", "gate", "-n", self.namespace, "--", "sh", "-c", command)

    def creep(self) -> bool:
        """Allow one step more while a pod is being deleted, since a run stops at a step's end. Return True."""
        if any("deletionTimestamp" in pod["metadata"] for pod in get("pods", self.namespace)):
            self.allow(self.steps + 1)
        return True

    def open(self) -> None:
        """Pause no run any more."""
        self.allow(float("inf"))
