"""From a pod template to what values say of a pod: placement, volumes, environment, resources, rights.

Fields that the chart has under the same name are carried as they are. The rest is said in the account (ledger.py).
"""

import re
from typing import Any

from trainyard.cluster.conversion.ledger import Node, empty

MAIN = ("pytorch", "node", "launcher", "worker")  # names of the container that trains, by the operators
GPU = re.compile(r"(^|[./-])gpu|/mig-|/gaudi$")
FABRIC = re.compile(r"^rdma/|/efa$|hostdev|/rdma|/ib|roce|infiniband|mlnx", re.I)
PLAIN = ("cpu", "memory", "ephemeral-storage")
FABRIC_ENV = re.compile(r"^(NCCL_IB_|FI_)")
# Names of variables that the operator or the chart gives a pod (common's _run.tpl)
RESERVED = (
    "HOME", "PYTHONUNBUFFERED", "TRAINYARD_JOB", "TRAINYARD_NAMESPACE", "TRAINYARD_RELEASE", "TRAINYARD_GRACE_SECONDS",
    "TRAINYARD_PREFLIGHT", "TRAINYARD_WAIT_SECONDS", "TRAINYARD_LOGS", "TRAINYARD_LOG_BYTES", "TRAINYARD_PEERS_PORT",
    "TRAINYARD_PEERS_WAIT", "TRAINYARD_SPARES", "TRAINYARD_TRANSPORT", "RANK", "WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT",
    "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "TRAINYARD_RUN_DIR", "TRAINYARD_METRICS_PORT",
)  # fmt: skip
MEETING = tuple(one for one in RESERVED if one.startswith(("PET_", "MASTER_")) or one in ("RANK", "WORLD_SIZE"))
VOLUMES = ("trainyard", "data", "results", "shm", "tmp", "home", "ca-bundle", "secret-mlflow")
CONTAINERS = ("preflight", "init-pytorch", "pytorch", "worker", "node", "launcher")
# Mounts of the chart's own, and what a user's mount there is in values
OWN_MOUNTS = {"/tmp": "global.storage.scratchSize", "/home/trainer": "global.storage.scratchSize",
              "/etc/trainyard": "", "/etc/trainyard-ca": "global.caBundle",
              "/etc/passwd": "global.storage.uid"}  # fmt: skip
LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/part-of", "helm.sh/chart",
          "app.kubernetes.io/managed-by", "trainer.kubeflow.org/framework", "kueue.x-k8s.io/queue-name",
          "kueue.x-k8s.io/priority-class", "sidecar.istio.io/inject")  # fmt: skip
SAME = ("hostAliases", "dnsConfig", "runtimeClassName", "resourceClaims")  # in a pod's spec and in its settings
PLACEMENT = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName")
SIZE = re.compile(r"^[1-9][0-9]*(Mi|Gi|Ti|Pi|M|G|T|P)$")
SMALLEST = 128 << 20  # bytes; a smaller memory limit does not hold PyTorch, and the chart refuses it
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "m": 1e-3,
         "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}  # fmt: skip

RESTRICTED = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
              "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip

Pod = dict[str, Any]


def convert(template: Node) -> Pod:
    """Return what values say of the pods of a template.

    `training` holds settings of the pods under their names in values; the other keys are facts that are shared or that
    a kind of job puts in its own place: image, pullPolicy, pullSecrets, words, folder, storage, scheduling, metrics.
    """
    pod: Pod = {"training": {}, "storage": {}, "scheduling": {}, "image": "", "words": [], "args": [], "folder": ""}
    metadata(template.at("metadata"), pod)
    spec = template.at("spec")
    main = container_of(spec.at("containers"))
    volumes = {one.value.get("name"): one for one in spec.at("volumes").children()}
    for one in spec.at("containers").children():
        if one.path != main.path:
            beside(one, pod, "extraContainers")
    for one in spec.at("initContainers").children():
        beside(one, pod, "extraInitContainers")
    pod["host"] = bool(spec.at("hostNetwork").value or main.at("securityContext", "privileged").value)
    resources(main.at("resources"), pod)
    part_of_a_gpu(pod["training"])
    mounts(main.at("volumeMounts"), volumes, pod)
    environment(main, pod)
    container(main, pod)
    place(spec, pod)
    rights(spec, main, pod)
    return pod


def container_of(containers: Node) -> Node:
    """Return the container that trains: the one whose name an operator asks for, else the first."""
    named = [one for one in containers.children() if one.value.get("name") in MAIN]
    return (named or containers.children() or [containers.at(0)])[0]


def metadata(node: Node, pod: Pod) -> None:
    """Carry labels and annotations of the pods."""
    node.take("creationTimestamp")
    for key in node.at("labels").value or {}:
        if key in LABELS:
            queue = key.startswith("kueue.x-k8s.io/")
            why = "Kueue reads it at the job, not at its pods: set global.scheduling.queue" if queue else ""
            node.lose("labels", key, why=why or "the chart gives its pods this label with its own value")
        else:
            pod["training"].setdefault("podLabels", {})[key] = str(node.take("labels", key))
    given = node.at("annotations").value or {}
    scraped = str(given.get("prometheus.io/scrape", "")).lower() == "true"
    port = str(given.get("prometheus.io/port", ""))
    for key in given:
        if key == "sidecar.istio.io/inject" and str(given[key]).lower() == "false":
            node.change("annotations", key, why="the chart switches the sidecar off by a label")
        elif key.startswith("prometheus.io/") and scraped and port.isdecimal() and int(port) >= 1024:
            path = key == "prometheus.io/path" and given[key] != "/metrics"
            if path:
                node.lose("annotations", key, why="the chart's annotation says /metrics: serve the metrics there")
            else:
                node.change("annotations", key, why="it follows from global.metrics, which has the port")
            pod["metrics"] = int(port)
        else:
            pod["training"].setdefault("podAnnotations", {})[key] = str(node.take("annotations", key))


def beside(node: Node, pod: Pod, key: str) -> None:
    """Carry a container beside the main one, or before it; one of the chart's names gets another."""
    found = dict(node.take())
    if found.get("name") in CONTAINERS:
        found["name"] = f"own-{found['name']}"
    if key == "extraInitContainers" and found.get("restartPolicy") == "Always":
        key = "extraContainers"
    found.pop("restartPolicy", None)
    pod["training"].setdefault(key, []).append(found)


def resources(node: Node, pod: Pod) -> None:
    """Carry requests and limits; GPUs and devices of a fabric have keys of their own."""
    training = pod["training"]
    for kind in ("requests", "limits"):
        for name, amount in (node.at(kind).value or {}).items():
            if GPU.search(name) or name.startswith("nvidia.com/mig-"):
                if training.get("gpuResource", name) != name:
                    node.lose(kind, name, why="the pods get one kind of GPU, global.training.gpuResource")
                    continue
                training |= {"gpuResource": name, "gpusPerNode": int(node.take(kind, name))}
            elif FABRIC.search(name) and "/" in name:
                if training.get("rdma", {}).get("resource", name) != name:
                    node.lose(kind, name, why="the pods get one kind of network device, global.training.rdma.resource")
                    continue
                training["rdma"] = {"resource": name, "count": int(node.take(kind, name))}
            elif kind == "limits" and name == "memory" and size(amount) < SMALLEST:
                node.lose(kind, name, why="it does not hold PyTorch, so the chart refuses it: measure, and set one")
            elif name in PLAIN or name.startswith("hugepages-") or "/" in name:
                training.setdefault("resources", {}).setdefault(kind, {})[name] = node.take(kind, name)
    if claims := node.at("claims").value:
        node.change("claims", why=f"the main container uses all {len(claims)} of global.training.resourceClaims")


def part_of_a_gpu(training: dict[str, Any]) -> None:
    """Set how many GPUs a pod has part of, by annotations of KAI's and Run:ai's scheduler and without a device."""
    given = training.get("podAnnotations", {})
    devices = given.get("gpu-fraction-num-devices", "1")
    if "gpusPerNode" not in training and given.keys() & {"gpu-fraction", "gpu-memory"} and devices.isdecimal():
        training |= {"gpusBy": "annotations", "gpusPerNode": int(devices)}


def size(amount: Any) -> float:
    """Return a quantity as a number; 0 for what is none."""
    found = re.fullmatch(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)([A-Za-z]*)", str(amount))
    return float(found[1]) * UNITS.get(found[2], 0) if found else 0.0


def mounts(node: Node, volumes: dict[str, Node], pod: Pod) -> None:
    """Carry volumes and where they are mounted; /dev/shm, /data and /results have keys of their own."""
    settled: set[str] = set()  # volumes that other keys stand for
    mounted: set[str] = set()
    for one in node.children():
        name = str(one.value.get("name"))
        if mount(one, volumes.get(name), pod):
            settled.add(name)
        else:
            mounted.add(name)
    training = pod["training"]
    for name, volume in volumes.items():
        claim = volume.value.get("persistentVolumeClaim") or {}
        if name in settled - mounted:
            volume.take()
            continue
        training.setdefault("extraVolumes", []).append(dict(volume.take()) | {"name": unique_name(name)})
        if claim and not claim.get("readOnly"):
            pod.setdefault("claims", []).append(claim["claimName"])


def mount(one: Node, volume: Node | None, pod: Pod) -> bool:
    """Carry a mount; return whether a key of the chart stands for its volume there."""
    where, source = str(one.value.get("mountPath", "")).rstrip("/"), volume.value if volume else {}
    claim = (source.get("persistentVolumeClaim") or {}).get("claimName")
    if where == "/dev/shm":
        shared_memory(one, volume, pod)
        return True
    if where in ("/data", "/results") and claim:
        for key in ("mountPath", "name"):
            one.take(key)
        own = pod["storage"].setdefault(where[1:], {"existingClaim": claim})
        if one.value.get("subPath"):
            own["subPath"] = one.take("subPath")
        if where == "/data":
            own["readOnly"] = bool(one.take("readOnly", default=False))
        return True
    if where in OWN_MOUNTS or where in ("/data", "/results"):
        spare = "emptyDir" in source and where in ("/tmp", "/home/trainer")
        key = OWN_MOUNTS.get(where, f"global.storage{where.replace('/', '.')}")
        say = one.change if spare else one.lose
        say(why=f"the pod has a volume of its own there{f' ({key})' if key else ''}")
        return spare
    name = unique_name(str(one.value.get("name")))
    pod["training"].setdefault("extraVolumeMounts", []).append(dict(one.take()) | {"name": name})
    return False


def unique_name(name: str) -> str:
    """Return the name of a volume, another one where the pod has one of that name already."""
    return f"own-{name}" if name in VOLUMES else name


def shared_memory(mount: Node, volume: Node | None, pod: Pod) -> None:
    """Carry the size of /dev/shm."""
    source = volume.value if volume else {}
    limit = pod["training"].get("resources", {}).get("limits", {}).get("memory")
    given = str((source.get("emptyDir") or {}).get("sizeLimit") or "")
    mount.take()
    if volume is None:
        return
    if "emptyDir" in source and SIZE.match(given):
        volume.take()
        pod["training"]["shmSize"] = given
        return
    half = f"{max(1, int(size(limit)) // 2 >> 20)}Mi" if limit and size(limit) <= 2 * (16 << 30) else "16Gi"
    pod["training"]["shmSize"] = half
    say = volume.change if "emptyDir" in source else volume.lose
    say(
        why=f"/dev/shm is memory of a fixed size that counts toward the limit: set global.training.shmSize (now {half})"
    )


def environment(main: Node, pod: Pod) -> None:
    """Carry the environment; variables of the launcher and of a fabric without a device are named."""
    training = pod["training"]
    sources = main.take("envFrom", default=[])
    if sources:
        training["envFrom"] = sources
    devices = "rdma" in training or any("/" in name for kind in training.get("resources", {}).values() for name in kind)
    off = any(one.value.get("name") == "NCCL_IB_DISABLE" and str(one.value.get("value")) == "1"
              for one in main.at("env").children())  # fmt: skip
    last = {one.value.get("name"): one for one in main.at("env").children()}
    found = []
    for one in main.at("env").children():
        name, value = str(one.value.get("name")), one.value.get("value")
        if last[one.value.get("name")].path != one.path:
            one.change(why=f"{name} is set twice, and the last one counts")
        elif name == "PYTHONUNBUFFERED" and str(value).lower() not in ("", "0"):
            one.change(why="the chart sets it")
        elif name in MEETING:
            one.change(why="the launcher and the operator tell each rank where it belongs")
        elif name in RESERVED:
            one.lose(why=f"the chart sets {name} itself: have the program read another variable")
        elif name.startswith("OMPI_ALLOW_RUN_AS_ROOT"):
            one.change(why="the ranks do not run as root")
        elif FABRIC_ENV.match(name) and not (devices or off or pod.get("host")):
            one.lose(
                why="no device of a fabric is requested, so it would have no effect: set global.training.rdma, then it"
            )
        else:
            one.take()
            found.append(one.value if value is None else one.value | {"value": str(value)})
    if found:
        training["env"] = found


def container(main: Node, pod: Pod) -> None:
    """Carry image and command, and say what the chart does by itself."""
    pod["image"] = str(main.take("image", default=""))
    pod["words"] = [str(one) for one in main.take("command", default=[])]
    pod["args"] = [str(one) for one in main.take("args", default=[])]
    pod["folder"] = str(main.take("workingDir", default=""))
    pod["pullPolicy"] = main.take("imagePullPolicy", default="")
    main.take("name")
    for key in ("terminationMessagePath", "terminationMessagePolicy"):
        main.change(key, why="the chart sets it, for trainyard why")
    for one in main.at("ports").children():
        port = one.value.get("containerPort")
        if one.value.get("name") == "metrics" and isinstance(port, int) and port >= 1024:
            one.take()
            pod["metrics"] = port
        elif one.value.get("name") in ("pytorchjob-port", "ssh", "mpi-port"):
            one.change(why="the operator or the chart opens it")
        else:
            one.lose(
                why="pods of the job reach each other at every port; for others set networkPolicy.training.ingress"
            )


def place(spec: Node, pod: Pod) -> None:
    """Carry where the pods go, and what their spec has under the chart's names."""
    for key in PLACEMENT:
        if not empty(value := spec.take(key)):
            pod["scheduling"][key] = value
    scheduler = spec.take("schedulerName", default="")
    if scheduler not in ("", "default-scheduler"):
        pod["scheduling"]["schedulerName"] = scheduler
    for key in SAME:
        if not empty(value := spec.take(key)):
            pod["training"][key] = value
    pod["pullSecrets"] = [one["name"] for one in spec.take("imagePullSecrets", default=[]) if "name" in one]
    seconds = spec.at("terminationGracePeriodSeconds").value
    if isinstance(seconds, int) and 10 <= seconds <= 3600:
        pod["training"]["gracePeriodSeconds"] = spec.take("terminationGracePeriodSeconds")
    else:
        spec.lose("terminationGracePeriodSeconds", why="global.training.gracePeriodSeconds is from 10 to 3600")
    spec.change("restartPolicy", why="the chart sets it: exit codes of 128 and above are retried, others are final")
    if spec.at("enableServiceLinks").value is False:
        spec.take("enableServiceLinks")
    if spec.at("dnsPolicy").value in ("Default", "None"):
        pod["training"]["dnsPolicy"] = spec.take("dnsPolicy")
    elif spec.at("dnsPolicy").value in ("ClusterFirst", "ClusterFirstWithHostNet"):
        spec.take("dnsPolicy")
    if spec.at("hostUsers").value in (True, False) and not spec.take("hostUsers"):
        pod["training"]["hostUsers"] = False
    spec.lose("hostIPC", why="processes of a pod share /dev/shm, whose size is global.training.shmSize")


def rights(spec: Node, main: Node, pod: Pod) -> None:
    """Carry user and groups, the service account, and exceptions from the restricted standard."""
    training = pod["training"]
    of_pod, of_main = spec.at("securityContext"), main.at("securityContext")
    for key, own in (("runAsUser", "uid"), ("runAsGroup", "gid"), ("fsGroup", "gid")):
        for place_of in (of_main, of_pod):
            user(place_of.at(key), own, pod)
    for key in ("supplementalGroups", "fsGroupChangePolicy"):
        if value := of_pod.take(key):
            pod["storage"][key] = value
    for key in ("sysctls", "seLinuxOptions", "supplementalGroupsPolicy"):
        if value := of_pod.take(key):
            training.setdefault("securityContext", {})[key] = value
    profiles(of_pod, training)
    for one in (of_pod, of_main):
        for key, value in RESTRICTED.items():
            if one.at(key).value == value:
                one.take(key)
    for node, own in ((of_main.at("privileged"), "privileged"), (spec.at("hostNetwork"), "hostNetwork")):
        if node.take():
            training.setdefault("unrestricted", {})[own] = True
    capabilities(of_main.at("capabilities"), training)
    account = spec.take("serviceAccountName") or spec.at("serviceAccount").value
    spec.take("serviceAccount")
    token = spec.take("automountServiceAccountToken")
    named = {} if account in (None, "default") else {"name": account}
    if own_account := named | ({"token": True} if token or (named and token is None) else {}):
        training["serviceAccount"] = own_account


def profiles(of_pod: Node, training: dict[str, Any]) -> None:
    """Carry the profiles of seccomp and AppArmor that the restricted standard allows."""
    for key, kinds in (("seccompProfile", ("Localhost",)), ("appArmorProfile", ("Localhost", "RuntimeDefault"))):
        if of_pod.at(key, "type").value in kinds:
            training.setdefault("securityContext", {})[key] = of_pod.take(key)


def user(node: Node, own: str, pod: Pod) -> None:
    """Carry a user's or a group's number; all pods have one of each."""
    if node.value is None:
        return
    if node.path[-1] == "runAsUser" and node.value == 0:
        pod["training"].setdefault("unrestricted", {})["runAsRoot"] = bool(node.take() == 0)
    elif pod["storage"].setdefault(own, node.value) == node.value:
        node.take()
    else:
        node.lose(why=f"global.storage.{own} is {pod['storage'][own]}, one number for all")


def capabilities(node: Node, training: dict[str, Any]) -> None:
    """Carry IPC_LOCK, which comes with a fabric's device; others are lost."""
    if node.at("drop").value is not None:
        node.take("drop")
    for one in node.at("add").children():
        if one.value == "IPC_LOCK" and "rdma" in training:
            one.take()
        elif one.value == "IPC_LOCK":
            one.lose(why="the pods get it with a fabric's device: set global.training.rdma.resource, or rdma.by")
        else:
            one.lose(why="the chart drops all capabilities but IPC_LOCK")
