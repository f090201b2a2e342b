"""The claims and pods that probes create, as objects of the API."""

import re
import secrets
from typing import Any

from trainyard.cluster.checks import placement

OLD = 900  # seconds after which a probe has been left behind
SIZE = "1Gi"  # of a probe claim
MARK = {"app.kubernetes.io/managed-by": "trainyard-doctor"}
LIKE = ("nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName", "priorityClassName", "schedulerName")
HAS_SHELL = re.compile(r"trainyard-(pytorch|horovod)|pytorch|python|busybox|alpine|debian|ubuntu|/base:")
# Says in its termination message whether a name of the cluster resolves, by whatever program the image has for that
SCRIPT = """
name=kubernetes.default.svc; found=none
for try in 1 2 3 4 5; do
  if command -v getent; then getent hosts $name && found=yes || found=no
  elif command -v python3; then python3 -c "import socket; socket.getaddrinfo('$name', 443)" && found=yes || found=no
  elif command -v nslookup; then nslookup $name && found=yes || found=no
  fi
  [ $found = no ] || break
  sleep 1
done
echo "names=$found" > /dev/termination-log
"""


def name() -> str:
    """Return a name that no other probe has."""
    return f"doctor-{secrets.token_hex(4)}"


def claim(called: str, storage_class: str, mode: str) -> dict:
    """Describe a probe claim."""
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": SIZE}}}
    spec["storageClassName"] = storage_class
    meta = {"name": called, "labels": MARK}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def pod(called: str, image: str, policy: str, like: dict, claims: list[str]) -> dict:
    """Describe a probe pod that every Pod Security level admits, placed like the pods of a run."""
    user = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    given = like.get("securityContext") or {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    user |= {key: given[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if given.get(key)}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": policy,
        "command": ["sh", "-c", SCRIPT],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": one, "mountPath": f"/claims/{one}"} for one in claims],
    }  # fmt: skip
    spec = {key: like[key] for key in LIKE if like.get(key)}
    if affinity := (like.get("affinity") or {}).get("nodeAffinity"):
        spec["affinity"] = {"nodeAffinity": affinity}
    spec |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": OLD,
        "securityContext": user,
        "containers": [container],
        # nothing is written, and read-only the kubelet changes no owners and no labels of files
        "volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one, "readOnly": True}} for one in claims],
    }
    meta = {"name": called, "labels": MARK | {"sidecar.istio.io/inject": "false"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def at_hand(nodes: list[dict]) -> str:
    """Return an image that a node has and that has a shell, as far as its name tells; empty where there is none."""
    found = [(one.get("sizeBytes", 0), text) for node in nodes if placement.is_ready(node)
             for one in node.get("status", {}).get("images") or [] for text in one.get("names") or []
             if "@" not in text and HAS_SHELL.search(text)]  # fmt: skip
    return min(found, default=(0, ""))[1]
