"""Runs that a test pauses at a step and continues: settings for the chart, and what opens their gate."""

import contextlib
import json
import time
from pathlib import Path

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until
from trainyard.cluster import kube

FOLDER = Path(__file__).parent / "mounted"  # what PYTHONPATH names where such a run is trained without a cluster
# by default a run that a busy machine holds at a step for a minute would be ended as one that hangs
CONFIG: dict[str, object] = {"model.name": "gate:Net", "model.zero_init_last_bn": False, "comm.hang_seconds": 3600}
GATE = "/results/gate"
PACE = 0.5  # seconds in which a run may creep one step: one that is slow to stop must not come to its end


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
        # Horovod's ranks look for gradients together; by default 1,000 times a second, which keeps two processors busy
        f"env[{env + 3}].name": "HOROVOD_CYCLE_TIME",
        f"env[{env + 3}].value": "20",
        **{f"config.{key}": value for key, value in CONFIG.items()},
        "config.log.console_seconds": 0.001,  # every step, so that the log tells where a run is held
    }
    flags = {True: "--set-string", False: "--set-json"}
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return [part for key, value in values.items()
            for part in (flags[isinstance(value, str)], f"global.training.{key}={told[key]}")]  # fmt: skip


def folder_of(claim: str, namespace: str) -> Path | None:
    """Return the folder of this machine that is a claim's volume; None where the volume is elsewhere."""

    def volume() -> str:
        found = get("persistentvolumeclaims", namespace, fields=f"metadata.name={claim}")
        return str(found[0]["spec"].get("volumeName", "")) if found else ""

    name = until(f"{claim} is bound", volume) if cluster.OWN else ""
    found = get("persistentvolumes", None, fields=f"metadata.name={name}") if name else []
    folder = Path(found[0]["spec"].get("hostPath", {}).get("path", "")) if found else Path()
    return folder if folder.is_absolute() and folder.is_dir() else None


class Gate:
    """The gate of all runs on a results claim, opened in its folder of this machine, else through a pod beside them.

    A command in a pod costs some tenths of a second of a processor, and a gate is moved at each look.
    """

    folder: Path | None = None

    def __init__(self, namespace: str, image: dict[str, str], first: int):
        self.namespace, self.image, self.steps, self.moved = namespace, image, first, 0.0
        module = (FOLDER / "gate.py").read_text()
        what = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gate"}, "data": {"gate.py": module}}
        cluster.answered(lambda: kube.create("configmaps", namespace, what))

    def stand(self, claim: str) -> None:
        """Find the folder of the claim that a release has made, or start the pod on it."""
        self.folder = folder_of(claim, self.namespace)
        if not self.folder:
            self._start(claim)

    def _start(self, claim: str) -> None:
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
        self.steps, self.moved = steps, time.monotonic()
        if self.folder:
            (self.folder / "gate.new").write_text(f"{steps}\n")
            (self.folder / "gate.new").replace(self.folder / "gate")
        else:
            command = f"echo {steps} > {GATE}.new && mv {GATE}.new {GATE}"
            kubectl("exec", "gate", "-n", self.namespace, "--", "sh", "-c", command)

    def read(self, path: str) -> str:
        """Return the text of a file of the claim; nothing while it is not there."""
        if self.folder:
            with contextlib.suppress(FileNotFoundError):
                return (self.folder / path).read_text()
            return ""
        command = f"cat /results/{path} 2>/dev/null || true"
        return kubectl("exec", "gate", "-n", self.namespace, "--", "sh", "-c", command)

    def creep(self) -> bool:
        """Allow one step more while a pod is being deleted, since a run stops at a step's end. Return True."""
        if time.monotonic() - self.moved > PACE and any(
            "deletionTimestamp" in pod["metadata"] for pod in get("pods", self.namespace)
        ):
            self.allow(self.steps + 1)
        return True

    def open(self) -> None:
        """Pause no run any more."""
        self.allow(float("inf"))
