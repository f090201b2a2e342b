"""Random values that a JSON schema allows, and the few changes that make them consistent."""

import random
import re
import string
from typing import Any

from . import helm

Schema = dict[str, Any]
OFTEN, SELDOM = 0.35, 0.12  # how likely an optional key is present, near the top and far below
DEPTH = 14
MADE = ("size", "storageClass", "accessModes", "annotations", "volumeName")  # what describes a claim to make
# Texts that YAML would take for something else, or that break where a template forgets to quote.
HARD = (
    "yes", "no", "null", "~", "1e3", "0x10", "007", "1.0", "2026-11-21", ": ", "- a", "#", "{{ .Values }}", '"', "'",
    "a\nb", " x ", "%d", "ü日", "*a", "&a", "@", "`", "[", "{", "|", ">", "!", "a: b", "\\", "\t",
)  # fmt: skip


class Arbitrary:
    """Draws values from a schema with its own definitions."""

    def __init__(self, schema: Schema, seed: int) -> None:
        self._schema, self._random = schema, random.Random(seed)

    def values(self) -> Any:
        """Draw one set of values."""
        return self._draw(self._schema, 0)

    def _draw(self, schema: Schema, depth: int) -> Any:
        pick = self._random
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        if "enum" in schema:
            return pick.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        for many in ("oneOf", "anyOf"):
            if many in schema:
                return self._draw(pick.choice(schema[many]), depth)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = pick.choice(kind) if isinstance(kind, list) else kind
        if kind == "string" and "numbers" in schema:
            schema = {key: value for key, value in schema.items() if key not in ("minimum", "maximum")}
        return getattr(self, f"_{kind}")(schema, depth)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        pick, found = self._random, {}
        likely = OFTEN if depth < 4 else SELDOM if depth < DEPTH else 0.0
        for key, value in schema.get("properties", {}).items():
            if key in schema.get("required", []) or pick.random() < likely:
                found[key] = self._draw(value, depth + 1)
        for pattern, value in schema.get("patternProperties", {}).items():
            if pick.random() < likely:
                found[self._match(pattern)] = self._draw(value, depth + 1)
        more = schema.get("additionalProperties", not schema.get("properties"))
        if more is not False and "properties" not in schema:
            for _ in range(pick.choice((0, 0, 1, 2))):
                key = f"example.com/{self._word()}"
                found[key] = self._draw(more if isinstance(more, dict) else {"type": "string"}, depth + 1)
        return found

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 2), least + (2 if depth < 6 else 1 if depth < DEPTH else 0))
        return [
            self._draw(schema.get("items", {"type": "string"}), depth + 1)
            for _ in range(self._random.randint(least, most))
        ]

    def _string(self, schema: Schema, _: int) -> str:
        if "pattern" in schema:
            return self._match(schema["pattern"])
        if schema.get("format") == "date-time":
            return "2026-11-21T00:00:00Z"
        text = self._random.choice(HARD) if self._random.random() < 0.3 else self._word()
        return text.ljust(schema.get("minLength", 0), "x")

    def _integer(self, schema: Schema, _: int) -> int:
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        most = schema.get("maximum", schema.get("exclusiveMaximum", (1 << 31) - 1) - ("exclusiveMaximum" in schema))
        return self._random.choice(
            (least, most, self._random.randint(least, most), self._random.randint(least, min(most, least + 9)))
        )

    def _number(self, schema: Schema, _: int) -> float:
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        most = schema.get("maximum", schema.get("exclusiveMaximum", least + 10))
        return self._random.choice((least + (most - least) / 3, least + 1e-7 * (most - least), (least + most) / 2))

    def _boolean(self, _schema: Schema, _: int) -> bool:
        return self._random.random() < 0.5

    def _null(self, _schema: Schema, _: int) -> None:
        return None

    def _word(self) -> str:
        return "".join(self._random.choices(string.ascii_lowercase, k=self._random.randint(1, 8)))

    def _match(self, pattern: str) -> str:
        """Draw a text that a pattern of the schemas matches."""
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
        text = "".join(self._part(op, value) for op, value in parsed)
        assert re.search(pattern, text), (pattern, text)
        return text

    def _part(self, op: Any, value: Any) -> str:
        pick, name = self._random, str(op)
        if name == "AT":
            return ""
        if name == "LITERAL":
            return chr(value)
        if name == "IN":
            kind, what = pick.choice(value)
            return chr(pick.randint(*what)) if str(kind) == "RANGE" else chr(what)
        if name == "BRANCH":
            return "".join(self._part(*one) for one in pick.choice(value[1]))
        if name == "SUBPATTERN":
            return "".join(self._part(*one) for one in value[3])
        if name == "MAX_REPEAT":
            least, most, what = value
            times = pick.randint(least, min(int(most), least + 6))
            return "".join(self._part(*one) for _ in range(times) for one in what)
        raise AssertionError(f"no way to draw {name} of a pattern")


def meaningful(values: helm.Values, seed: int) -> helm.Values:
    """Correct values that each key allows but that contradict each other: templates refuse those."""
    pick = random.Random(seed)
    shared = values.setdefault("global", {})
    parts = {name: values.setdefault(name, {}) for name in helm.SUBCHARTS}
    image = shared.setdefault("image", {})
    image |= {"registry": "registry.example.com/team", "tag": image.get("tag") or "0.1.0"}
    image["tag"] = "0.1.0" if image["tag"] == "latest" else image["tag"]
    parts["filebrowser"].get("image", {}).pop("registry", None)
    training_operator = ("", "", "pytorchjob", "mpijob", "trainjob")
    shared.setdefault("training", {})["operator"] = pick.choice(training_operator)
    training = shared.setdefault("training", {})
    used = [parts[name].get("image", {}) for name in _pulling(parts, training.get("operator", ""))]
    if used and all(one.get("digest") or one.get("tag") for one in used):
        image["tag"] = ""
    own = [parts[job].get("training", {}) for job in ("pytorchjob", "mpijob", "trainjob")]
    for one in (training, *own):
        _mend_training(one, pick, own=one is not training)
    _mend_users(parts, training, own, shared)
    launcher = parts["mpijob"].setdefault("launcher", {})
    pods = [training, *own, parts["dataset"], parts["evaluate"], parts["filebrowser"], launcher]
    for one in pods:
        _mend_pod(one)
    for one in (parts["dataset"], parts["evaluate"], parts["filebrowser"], launcher):
        _mend_resources(one.get("resources", {}))
    image["pullSecrets"] = list(dict.fromkeys(image.get("pullSecrets", [])))
    _mend_placement(shared.get("scheduling", {}))
    _mend_claims(shared, made=parts["storage"].get("enabled") is not False)
    for job in ("pytorchjob", "mpijob", "trainjob"):
        parts[job].get("runPolicy", {}).pop("managedBy", None)
        parts[job].get("training", {}).pop("name", None)
    training.pop("name", None)
    parts["trainjob"].get("runPolicy", {}).pop("ttlSecondsAfterFinished", None)  # 60 or more
    parts["trainjob"].pop("version", None)  # earlier ones refuse some of these values
    elastic = parts["pytorchjob"].get("elastic", {})
    elastic.pop("minNodes", None)
    if not elastic.get("maxRestarts"):
        elastic.pop("spares", None)
    metrics = shared.get("metrics", {})
    if not metrics.get("enabled"):
        metrics.get("rules", {}).pop("enabled", None)
    for one in (training, *own):
        one.get("config", {}).get("metrics", {}).pop("port", None)
        if one.get("peers", {}).get("port") == metrics.get("port", 9400):
            one["peers"].pop("port")
    values.pop("extraObjects", None)
    _mend_source(parts["dataset"])
    _mend_evaluation(parts["evaluate"])
    _mend_secrets(parts["secrets"], shared)
    _mend_filebrowser(parts["filebrowser"])
    _share(pods, shared, pick)
    _mend_program(values, [training, *own], pick)
    return values


def _share(pods: list[helm.Values], shared: helm.Values, pick: random.Random) -> None:
    """Let maps that meet in one object have a key in common, half of the time."""
    if pick.random() < 0.5:
        for one in pods:
            one.setdefault("podLabels", {})["example.com/shared"] = "the-pods"
            one.setdefault("podAnnotations", {})["example.com/shared"] = "the-pods"
        for one in pods[:-2]:  # those that belong to a job: not the page's, nor the launcher's
            one.setdefault("jobLabels", {})["example.com/shared"] = "of-the-job"
        shared.setdefault("metrics", {}).setdefault("labels", {})["example.com/shared"] = "of-metrics"
        shared.setdefault("labels", {})["example.com/shared"] = "of-all"


def _mend_program(values: helm.Values, trainings: list[helm.Values], pick: random.Random) -> None:
    """Let half of those with a program of their own train by it, without what is of the project's own trainers."""
    programs = [one.pop("command") for one in trainings if one.get("command")]
    if not programs or pick.random() < 0.5:
        return
    trainings[0]["command"] = programs[0]
    for one in trainings:
        one.pop("recipe", None)
        one.pop("config", None)
    values["evaluate"]["enabled"] = False
    values["global"].get("metrics", {}).get("rules", {}).pop("enabled", None)


def _pulling(parts: dict[str, helm.Values], operator: str) -> set[str]:
    """Return the parts that pull an image; if an operator is named, only it trains."""
    jobs = {name for name in ("mpijob", "trainjob") if parts[name].get("enabled")}
    trains = jobs - ({"trainjob"} if parts["trainjob"].get("job", {}).get("enabled", True) is False else set())
    first = parts["pytorchjob"].get("enabled", "")
    jobs |= {"pytorchjob"} if first is True or (first == "" and not trains) else set()
    if operator:
        jobs = jobs & {"trainjob"} | {operator}
    return jobs | {
        name for name in ("dataset", "evaluate", "filebrowser") if parts[name].get("enabled", name == "dataset")
    }


def _mend_users(
    parts: dict[str, helm.Values], training: helm.Values, own: list[helm.Values], shared: helm.Values
) -> None:
    """MPI needs a user by number that is not root."""
    mpi = any(one.get("config", {}).get("strategy") == "horovod" for one in (training, *own))
    if mpi or parts["mpijob"].get("enabled") or training.get("operator") == "mpijob":
        storage = shared.setdefault("storage", {})
        storage["uid"] = 1000 if storage.get("uid") == "platform" else storage.get("uid", 1000)
        for one in (training, *own):
            one.get("unrestricted", {}).pop("runAsRoot", None)


def _mend_pod(pod: helm.Values) -> None:
    """Give volumes, mounts and containers names that fit each other, and what they cannot be without."""
    for number, volume in enumerate(pod.get("extraVolumes", [])):
        kinds = sorted(set(volume) - {"name"})
        for kind in kinds[1:]:
            del volume[kind]
        volume.update({"name": f"volume-{number}"} | ({} if kinds else {"emptyDir": {}}))
    for claim in pod.get("resourceClaims", []):
        claim.pop("resourceClaimName", None)
        claim["resourceClaimTemplateName"] = claim.get("resourceClaimTemplateName") or "any"
    _mend_variables(pod)
    _mend_rights(pod)
    names = [volume["name"] for volume in pod.get("extraVolumes", [])]
    mounts = pod.get("extraVolumeMounts", [])
    for number, mount in enumerate(mounts):
        mount |= {"name": names[0] if names else "tmp", "mountPath": f"/further/{number}"}
    for key in ("extraInitContainers", "extraContainers"):
        for number, container in enumerate(pod.get(key, [])):
            container["name"] = f"{key.lower()}-{number}"
            container["image"] = container.get("image") or "registry.example.com/further:1"
            _mend_variables(container)
            _mend_resources(container.get("resources", {}))
            for mount in container.get("volumeMounts", []):
                mount["name"] = "tmp"


def _mend_variables(holder: helm.Values) -> None:
    """Let a variable have one source."""
    for variable in (*holder.get("env", []), *holder.get("rdma", {}).get("env", [])):
        if variable.get("value"):
            variable.pop("valueFrom", None)


def _mend_rights(pod: helm.Values) -> None:
    """Name the servers of a resolver of its own, and the profile that the node has, and take no user twice."""
    if pod.get("dnsPolicy") == "None":
        pod.setdefault("dnsConfig", {})["nameservers"] = ["10.0.0.10"]
    if pod.get("unrestricted", {}).get("hostNetwork"):
        pod.pop("hostUsers", None)
    if "appArmorProfile" in pod.get("securityContext", {}):
        pod["securityContext"]["appArmorProfile"].setdefault("type", "RuntimeDefault")
    for profile in ("seccompProfile", "appArmorProfile"):
        known = pod.get("securityContext", {}).get(profile, {})
        known.pop("localhostProfile", None)
        known |= {"localhostProfile": "own"} if known.get("type") == "Localhost" else {}
    for number, alias in enumerate(pod.get("hostAliases", [])):
        alias["ip"] = f"10.0.0.{number}"
    for number, parameter in enumerate(pod.get("securityContext", {}).get("sysctls", [])):
        parameter["name"] = f"net.example{number}"
    _mend_placement(pod.get("scheduling", {}))


def _mend_placement(scheduling: helm.Values) -> None:
    """Let no entry contradict itself, or another one."""
    for one in scheduling.get("tolerations", []):
        if one.get("operator") == "Exists":
            one.pop("value", None)
        elif not one.get("key"):
            one["key"] = "some"
        if one.get("effect") != "NoExecute":
            one.pop("tolerationSeconds", None)
    for number, one in enumerate(scheduling.get("topologySpreadConstraints", [])):
        one["topologyKey"] = f"zone-{number}"


def _mend_claims(shared: helm.Values, made: bool) -> None:
    """Describe or name a claim, and let a description share a key with the chart's own annotations."""
    for which in ("data", "results"):
        claim = shared.setdefault("storage", {}).setdefault(which, {})
        if not made:
            claim["existingClaim"] = claim.get("existingClaim") or "there"
        for key in MADE if claim.get("existingClaim") else ():
            claim.pop(key, None)
        if claim.get("accessModes"):
            claim["accessModes"] = [
                mode if mode != "ReadOnlyMany" else "ReadWriteMany" for mode in claim["accessModes"]
            ]
            claim["accessModes"] = (
                ["ReadWriteMany"] if claim["accessModes"] == ["ReadWriteOncePod"] else claim["accessModes"]
            )
        if not claim.get("existingClaim"):
            claim.setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"


def _mend_resources(resources: helm.Values) -> None:
    """Let no request be above its limit, nor above the default's, and a device have both."""
    requests, limits = resources.setdefault("requests", {}), resources.setdefault("limits", {})
    if "memory" in requests:
        limits.setdefault("memory", requests["memory"])
    limits |= {name: amount for name, amount in requests.items() if "/" in name or name.startswith("hugepages-")}
    requests |= limits


def _mend_filebrowser(filebrowser: helm.Values) -> None:
    auth = filebrowser.setdefault("auth", {})
    auth["password"] = "" if auth.get("existingSecret") else auth.get("password") or "some password"
    ingress = filebrowser.setdefault("ingress", {})
    ingress["host"] = ingress.get("host") or "files.example.com"


def _mend_training(training: helm.Values, pick: random.Random, own: bool) -> None:
    processes = (
        {"gpusPerNode": 0, "processesPerNode": pick.randint(1, 9)} if pick.random() < 0.5 else {"gpusPerNode": 4}
    )
    training.update({} if own else {"processesPerNode": 0, "nodes": training.get("nodes") or 2, **processes})
    for key in ("gpusPerNode", "processesPerNode", "rdma", "shmSize", "gpuResource", "gpusBy",
                "resourceClaims", "hostUsers", "dnsPolicy", "dnsConfig") if own else ():  # fmt: skip
        training.pop(key, None)
    if own and not training.get("nodes"):
        training.pop("nodes", None)
    if training.get("gpusBy"):
        training["gpuResource"] = ""
        training.setdefault("podAnnotations", {})["gpu-fraction"] = "0.5"
    if not own and not training.get("gpuResource", "nvidia.com/gpu"):
        training["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "any"}]
    training["resources"] = (
        {"requests": {"cpu": pick.choice(("1", 2, 0.5))}} if pick.random() < 0.5 else {"limits": {"memory": "8000Pi"}}
    )
    if not own:
        rdma = training.get("rdma", {})
        if not rdma.get("resource"):
            training["rdma"] = {}
        training["rdma"].pop("by", None)
    config = training.get("config", {})
    for section, key in (("run", "dir"), ("data", "dir"), ("batch", "per_process")):
        config.get(section, {}).pop(key, None)


def _mend_source(dataset: helm.Values) -> None:
    """Keep the one address that fits a kind; drop the kind half of the time."""
    source = dataset.setdefault("source", {})
    needed = {
        "kaggle": ("competition", "some"),
        "kaggle-dataset": ("dataset", "some/set"),
        "http": ("url", "https://a.example.com/a.zip"),
        "objectstore": ("url", "s3://bucket/a.zip"),
        "path": ("path", "/data/a"),
    }
    kind = list(needed)[len(str(source)) % len(needed)]
    key, value = needed[kind]
    others = {other: source[other] for other in ("endpoint", "anonymous") if other in source and kind == "objectstore"}
    if "@" in str(others.get("endpoint", "")):
        del others["endpoint"]
    dataset["source"] = others | {"kind": kind if len(str(source)) % 2 else "", key: value}


def _mend_evaluation(evaluate: helm.Values) -> None:
    """Name the run, since several or none may train, and use GPUs or processes."""
    evaluate["run"] = evaluate.get("run") or "some"
    if evaluate.get("gpus"):
        evaluate["processes"] = 1
    if evaluate.get("gpusBy"):
        evaluate["gpuResource"] = ""
    evaluate.setdefault("podAnnotations", {})["gpu-fraction"] = "0.5"
    evaluate["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "any"}]


def _mend_secrets(secrets: helm.Values, shared: helm.Values) -> None:
    if not secrets.get("enabled"):
        return
    shared["secrets"] = {}
    shared["image"]["pullSecrets"] = [*shared["image"].get("pullSecrets", []), "demo-registry"]
    external = secrets.setdefault("external", {})
    external.setdefault("store", {})["name"] = "vault"
    for which in ("kaggle", "objectstore", "http", "wandb", "mlflow", "registry"):
        made = secrets.setdefault(which, {})
        for pair in (("username", "key"), ("username", "password")):
            if which in ("kaggle", "registry") and (which == "kaggle") == (pair[1] == "key"):
                made.update(dict.fromkeys(pair, "x") if any(made.get(key) for key in pair) else dict.fromkeys(pair, ""))
        if which == "mlflow":
            made.update(dict.fromkeys(("username", "password"), ""))
        if which == "objectstore":
            made.update(dict.fromkeys(("accessKeyId", "secretAccessKey"), "x" if made else ""))
        if any(value for key, value in made.items() if key != "server"):
            external.pop(which, None)
