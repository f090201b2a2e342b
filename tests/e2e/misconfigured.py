"""What the misconfigurations need in the cluster: claims with prepared folders, a full volume, a class without RWX."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import ports
from tests.e2e import cluster, owners
from tests.e2e.cluster import kubectl
from tests.e2e.owners import LABELS

# A dataset of four pictures, prepared by the image's own program, and copies of it that lack something.
SEED = """
import shutil, subprocess, sys
from pathlib import Path
from PIL import Image
for name in ("train/a/1", "train/b/2", "val/a/3", "val/b/4"):
    path = Path("/tmp/pictures") / f"{name}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32)).save(path)
settings = ("source.kind=path", "source.path=/tmp/pictures", "layout=imagefolder", "out=/data/whole")
command = [sys.executable, "-m", "trainyard", "prepare", "build"]
subprocess.run([*command, *(f"--set={one}" for one in settings)], check=True)
shutil.copytree("/data/whole", "/data/torn")
shard = Path("/data/torn/train/shard-00000.tar")
shard.write_bytes(shard.read_bytes()[:-512])
"""


def claim(name: str, **spec: object) -> dict:
    """Describe a claim that many pods may write."""
    size = {"requests": {"storage": "1Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": size, **spec},
    }


def seed(namespace: str, image: str) -> None:
    """Make the claims `data`, with the folders `whole` and `torn`, and `results`."""
    user = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("data", "results")]
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": user,
        "containers": [
            {"name": "seed", "image": image, "command": ["python", "-c", SEED], "securityContext": closed,
             "volumeMounts": mounts}
        ],
        "volumes": [{"name": m["name"], "persistentVolumeClaim": {"claimName": m["name"]}} for m in mounts],
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "seed"}, "spec": spec}
    apply(namespace, claim("data"), claim("results"), pod)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    waited = cluster.run("kubectl", "wait", "-n", namespace, "pod/seed", done, "--timeout=24h", check=False)
    assert waited.returncode == 0, kubectl("logs", "seed", "-n", namespace, check=False) + waited.stderr


def apply(namespace: str, *things: dict) -> None:
    """Create objects, or change them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    kubectl("apply", "-n", namespace, "-f", "-", stdin=text)


@contextlib.contextmanager
def full_volume(namespace: str) -> Iterator[str]:
    """A claim on a file system of 64 KiB without a free byte; yields its name."""
    name = f"full-{secrets.token_hex(3)}"
    place = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run" / name
    node = ("hack/cluster/in-node", "sh", "-c")
    fill = f"mkdir {place}; mount -t tmpfs -o size=64k,mode=0777 tmpfs {place}; dd if=/dev/zero of={place}/all bs=4k"
    cluster.run(*node, f"{fill} 2> /dev/null || true")
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Mi"}, "hostPath": {"path": str(place)},
                 "claimRef": {"namespace": namespace, "name": "full"}, "persistentVolumeReclaimPolicy": "Retain"},
    }  # fmt: skip
    try:
        apply(namespace, volume, claim("full", storageClassName="", volumeName=name))
        yield "full"
    finally:
        owners.delete("persistentvolumes", name)
        # a pod may still use it; the file system then goes with the pod
        cluster.run(*node, f"umount -l {place}; rmdir {place}")


@contextlib.contextmanager
def registry() -> Iterator[str]:
    """A registry on the node that answers, and knows no image; yields its name."""
    port = ports.free()
    serve = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", "/nowhere")
    # nsenter starts it in another namespace of processes, where a signal to nsenter does not reach it
    command = ("hack/cluster/in-node", "setpriv", "--pdeathsig", "TERM", *serve)
    with subprocess.Popen(
        command, cwd=cluster.ROOT, env=cluster.ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            listens = ("hack/cluster/in-node", "bash", "-c", f": < /dev/tcp/127.0.0.1/{port}")
            cluster.until("the registry listens", lambda: cluster.run(*listens, check=False).returncode == 0)
            yield f"localhost:{port}"
        finally:
            server.terminate()


@contextlib.contextmanager
def one_node_class() -> Iterator[str]:
    """A StorageClass as most one-node clusters have it, whose provisioner makes ReadWriteOnce volumes alone."""
    name, home = f"one-node-{secrets.token_hex(3)}", ("-n", "local-path-storage")
    own = json.loads(kubectl("get", "deployment", "local-path-provisioner", *home, "-o", "json"))
    config = json.loads(kubectl("get", "configmap", "local-path-config", *home, "-o", "json"))
    paths = [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": ["/var/lib/trainyard/run/volumes"]}]
    settings = {**config["data"], "config.json": json.dumps({"nodePathMap": paths})}
    pod = own["spec"]["template"]
    pod["metadata"]["labels"] = {"app": name}
    pod["spec"]["containers"][0]["command"] += ["--provisioner-name", f"trainyard.test/{name}"]
    pod["spec"]["volumes"][0]["configMap"]["name"] = name
    meta = {"name": name, "labels": LABELS}
    things = (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": settings},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
         "spec": {"selector": {"matchLabels": {"app": name}}, "template": pod}},
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": meta,
         "provisioner": f"trainyard.test/{name}", "volumeBindingMode": "WaitForFirstConsumer"},
    )  # fmt: skip
    try:
        apply(home[1], *things)
        yield name
    finally:
        for kind, place in (("storageclasses", None), ("deployments", home[1]), ("configmaps", home[1])):
            owners.delete(kind, name, place)
