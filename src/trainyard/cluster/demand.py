"""The requests of a run to a cluster: the chart's objects for a user's values, or for a run of some nodes and GPUs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainyard.cluster import helm, published
from trainyard.cluster.errors import KubeError
from trainyard.cluster.parsing import WrongInputError
from trainyard.core.files import value_at

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library reads manifests in an eighth of the time
RELEASE = "doctor"  # whose objects are rendered; none of them is created
IMAGE = "registry.example.com/trainyard"  # stands for an image that nobody has named
PLACEHOLDER = f"{IMAGE}/trainyard:0.1.0"
JOBS = ("PyTorchJob", "MPIJob", "TrainJob")
SMALL = {  # a run without GPUs, as the demo's
    "recipe": "demo",
    "shmSize": "64Mi",
    "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
}


class PodGroup(NamedTuple):
    """Pods that are alike: what makes them, how many, and their template."""

    name: str  # such as `pytorchjob worker`
    owner: dict
    pods: int
    template: dict

    @property
    def spec(self) -> dict:
        """The spec of each pod."""
        found: dict = self.template.get("spec", {})
        return found

    @property
    def labels(self) -> dict[str, str]:
        """The labels of each pod."""
        found: dict = self.template.get("metadata", {}).get("labels", {})
        return found

    @property
    def trains(self) -> bool:
        """Whether these pods hold the GPUs of a run."""
        return self.owner["kind"] in JOBS and not self.name.endswith("launcher")


class Demand(NamedTuple):
    """The requests of a run."""

    said: str  # in words
    assumed: bool  # nobody has named values
    values: dict
    objects: list[dict]
    problem: str = ""  # why nothing was rendered: then the cluster alone is examined
    refused: str = ""  # what the chart says of the values, if it refuses them

    @property
    def groups(self) -> list[PodGroup]:
        """The pods, by what makes them."""
        return [group for thing in self.objects for group in groups(thing, self.objects)]

    @property
    def training(self) -> list[PodGroup]:
        """The pods that train."""
        return [group for group in self.groups if group.trains]

    @property
    def claims(self) -> list[dict]:
        """The claims that would be created."""
        return [thing for thing in self.objects if thing["kind"] == "PersistentVolumeClaim"]

    def makes(self, kind: str) -> set[str]:
        """Return the names of the objects of a kind that the release itself makes."""
        return {thing["metadata"]["name"] for thing in self.objects if thing["kind"] == kind}

    @property
    def jobs(self) -> list[dict]:
        """The jobs that train."""
        return [thing for thing in self.objects if thing["kind"] in JOBS]

    @property
    def placeholder(self) -> bool:
        """Whether nobody has named the image."""
        return any(IMAGE in image for image in images(self))

    @property
    def spreads(self) -> bool:
        """Whether pods of the run may be on several nodes."""
        return sum(group.pods for group in self.training) > 1


def read_values(files: list[str]) -> dict:
    """Merge values files, the last one first; raises WrongInputError for what is none."""
    merged: dict = {}
    for file in files:
        try:
            text = Path(file).read_text()
            found = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError) as error:
            raise WrongInputError(f"-f {file}: {getattr(error, 'strerror', None) or error}") from error
        except yaml.YAMLError as error:
            raise WrongInputError(f"-f {file} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(found, dict | None):
            raise WrongInputError(f"-f {file} holds no map of values: write keys as in charts/trainyard/values.yaml")
        if twice := find_doubled_key(text):
            raise WrongInputError(f"-f {file}: {twice}")
        merged = merge(merged, found or {})
    return merged


def find_doubled_key(text: str) -> str:
    """Say which key of a map stands twice in YAML, of which Helm takes the last alone; empty where none does."""
    waiting, seen = [yaml.compose(text, Loader=LOADER)], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        lines: dict[str, int] = {}
        for item in node.value:
            if not isinstance(item, tuple):
                waiting.append(item)
                continue
            key, line = str(item[0].value), item[0].start_mark.line + 1
            if key in lines:
                return f"the key {key} stands twice in one map, in lines {lines[key]} and {line}: Helm takes the last"
            lines[key] = line
            waiting.append(item[1])
    return ""


def merge(below: dict, above: dict) -> dict:
    """Merge two maps; the second one takes precedence."""
    both = {key: merge(below[key], value) for key, value in above.items()
            if isinstance(value, dict) and isinstance(below.get(key), dict)}  # fmt: skip
    return below | above | both


def at(values: dict, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path."""
    found = value_at(values, *path.split("."))
    return default if found is None else found


def assume(operator: str, nodes: int, gpus: int, resource: str, image: str) -> dict:
    """Return values of a run that nobody has described further; without an image, where the chart names its own."""
    training: dict[str, Any] = {"operator": operator, "nodes": nodes}
    training |= {"gpusPerNode": gpus, "gpuResource": resource} if gpus else {"processesPerNode": 1} | SMALL
    shared: dict[str, Any] = {"training": training}
    if image:
        shared["image"] = dict(zip(("registry", "tag"), split(image), strict=True))
    dataset: dict[str, Any] = {"source": {"url": "https://data.example.com/pictures.zip"}}
    if not gpus:
        shared["storage"] = {"data": {"size": "1Gi"}, "results": {"size": "5Gi"}}
        dataset["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
    return {"global": shared, "dataset": dataset}


def split(image: str) -> tuple[str, str]:
    """Return registry with folder, and tag, of an image's name; raises WrongInputError where it lacks one of them."""
    place, _, tag = image.rpartition(":")
    registry, _, name = place.rpartition("/")
    if not registry or not name or "/" in tag or "@" in image:
        raise WrongInputError(f"--image {image}: write REGISTRY/FOLDER/NAME:TAG, or name values with -f")
    return registry, tag


def render(values: dict, chart: str, namespace: str, version: str) -> tuple[list[dict], str]:
    """Return the chart's objects for values, or what the chart says of them where it refuses them.

    Raises KubeError where there is no Helm or no chart.
    """
    if "://" not in chart and not Path(chart, "Chart.yaml").is_file() and not Path(chart).is_file():
        raise KubeError(f"there is no chart {chart}: name it with --chart")
    line = [chart, *published.version_options(chart), "-n", namespace, "-f", "-"]
    line += ["--kube-version", version.partition("+")[0].partition("-")[0]] if version else []
    done = helm.template(RELEASE, *line, values=json.dumps(values))
    if done.returncode:
        return [], refusal(done.stderr)
    return list(documents(done.stdout)), ""


def documents(text: str) -> Iterator[dict]:
    """Yield the objects of rendered manifests, those of a List too."""
    for one in yaml.load_all(text, Loader=LOADER):
        if one:
            yield from one["items"] if one["kind"] == "List" else [one]


def refusal(text: str) -> str:
    """Return what the chart itself says, from what Helm prints."""
    lines = [line.strip() for line in text.partition("Error: ")[2].splitlines()]
    own = [line for line in lines if line and not line.startswith(("Use --debug", "execution error at"))]
    return " ".join(own) or " ".join(text.split())


def groups(thing: dict, objects: list[dict]) -> Iterator[PodGroup]:
    """Yield the pods that an object makes; a TrainJob's are in the runtime that it names, among the objects."""
    kind, spec = thing["kind"], thing.get("spec", {})
    if kind in ("PyTorchJob", "MPIJob"):
        for role, part in (spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs") or {}).items():
            yield PodGroup(f"{kind.lower()} {role.lower()}", thing, int(part.get("replicas", 1)), part["template"])
    elif kind == "TrainJob":
        nodes = int(at(spec, "trainer.numNodes", 1))
        name = at(spec, "runtimeRef.name")
        runtimes = [one for one in objects if one["kind"] == "TrainingRuntime" and one["metadata"]["name"] == name]
        for runtime in runtimes:
            for part in at(runtime, "spec.template.spec.replicatedJobs", []):
                yield PodGroup("trainjob node", thing, nodes, at(part, "template.spec.template", {}))
    elif kind == "Job":
        name = at(thing, "metadata.labels", {}).get("app.kubernetes.io/name", "job")
        yield PodGroup(f"{name} job", thing, int(spec.get("parallelism") or 1), spec["template"])
    elif kind == "Deployment":
        name = at(thing, "metadata.labels", {}).get("app.kubernetes.io/name", "deployment")
        yield PodGroup(name, thing, int(spec.get("replicas", 1)), spec["template"])


def containers(spec: dict) -> list[dict]:
    """Return all containers of a pod's spec."""
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def images(demand: Demand) -> list[str]:
    """Return the images of a run, without doubles."""
    found = [one.get("image", "") for group in demand.groups for one in containers(group.spec)]
    return list(dict.fromkeys(image for image in found if image))


def list_required(demand: Demand) -> dict[str, set[str]]:
    """Return names of secrets and configmaps that pods cannot start without, and that the release does not make."""
    found: dict[str, set[str]] = {"secret": set(), "configmap": set()}
    for group in demand.groups:
        for kind, name in references(group.spec):
            found[kind].add(name)
    for thing in demand.objects:
        if thing["kind"].lower() in found:
            found[thing["kind"].lower()].discard(thing["metadata"]["name"])
        if thing["kind"] == "ExternalSecret":
            found["secret"].discard(at(thing, "spec.target.name", thing["metadata"]["name"]))
    return found


def references(spec: dict) -> Iterator[tuple[str, str]]:
    """Yield the secrets and configmaps that a pod needs: kind and name."""
    for pull in spec.get("imagePullSecrets", []):
        yield "secret", pull["name"]
    for volume in spec.get("volumes", []):
        sources = [volume, *at(volume, "projected.sources", [])]
        for source in sources:
            for kind, key in (("secret", "secret"), ("configmap", "configMap")):
                what = source.get(key) or {}
                name = what.get("secretName") or what.get("name")
                if name and not what.get("optional"):
                    yield kind, name
    for one in containers(spec):
        for source in [*one.get("envFrom", []), *(env.get("valueFrom") or {} for env in one.get("env", []))]:
            for kind, key in (("secret", "secret"), ("configmap", "configMap")):
                what = source.get(f"{key}Ref") or source.get(f"{key}KeyRef") or {}
                if what.get("name") and not what.get("optional"):
                    yield kind, what["name"]


def list_keys(spec: dict) -> Iterator[tuple[str, str]]:
    """Yield the keys of configmaps without which a pod does not start: name and key."""
    volumes = spec.get("volumes", [])
    for source in [*volumes, *(one for volume in volumes for one in at(volume, "projected.sources", []))]:
        what = source.get("configMap") or {}
        yield from ((what["name"], one["key"]) for one in what.get("items") or [] if not what.get("optional"))
    for one in containers(spec):
        for env in one.get("env", []):
            what = (env.get("valueFrom") or {}).get("configMapKeyRef") or {}
            if what and not what.get("optional"):
                yield what["name"], what["key"]
