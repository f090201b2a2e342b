"""Checks that the cluster's operators fit the chart: the versions and fields that its jobs use."""

from trainyard.cluster import trainjobs, versions
from trainyard.cluster.findings import Finding

# Kind -> the version that the chart renders, and fields of its spec that older operators do not know.
NEEDED = {
    "pytorchjobs.kubeflow.org": (
        "v1",
        ("nprocPerNode", "elasticPolicy.rdzvConf", "runPolicy.suspend", "runPolicy.managedBy"),
    ),
    "mpijobs.kubeflow.org": (
        "v2beta1",
        ("slotsPerWorker", "sshAuthMountPath", "launcherCreationPolicy", "mpiImplementation", "runPolicy.suspend"),
    ),
    # Kueue admits a TrainJob by its runtimePatches
    trainjobs.TRAINJOBS: (
        "v1alpha1",
        ("runtimeRef", "trainer.numProcPerNode", "activeDeadlineSeconds", "managedBy", "runtimePatches"),
    ),
    trainjobs.RUNTIMES: (
        "v1alpha1",
        ("mlPolicy.torch", "template.spec.failurePolicy.rules", "template.spec.network.publishNotReadyAddresses"),
    ),
    trainjobs.JOBSETS: (
        "v1alpha2",
        ("failurePolicy.rules", "network.publishNotReadyAddresses"),
    ),
}
TESTED = {
    "pytorchjobs.kubeflow.org": "training-operator 1.9.4",
    "mpijobs.kubeflow.org": "mpi-operator 0.8.2",
    trainjobs.TRAINJOBS: f"Kubeflow Trainer {versions.TRAINER}",
    trainjobs.RUNTIMES: f"Kubeflow Trainer {versions.TRAINER}",
    trainjobs.JOBSETS: f"JobSet {versions.JOBSET}",
}
# Fields that Trainer 2.1 lacks, which a release does without whose values name that version
OF_TRAINER_2_2 = ("activeDeadlineSeconds", "runtimePatches")
V1 = ("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org")


def has(schema: dict, path: str) -> bool:
    """Whether an OpenAPI schema knows a dotted path."""
    for step in path.split("."):
        schema = schema.get("properties", {}).get(step)
        if schema is None:
            return False
    return True


def fit(crd: dict, trainer: tuple[int, ...] = ()) -> Finding | None:
    """Explain a CRD that the chart's jobs do not fit, written for a version of Trainer; None where they do."""
    kind = crd["metadata"]["name"]
    version, fields = NEEDED[kind]
    if trainer and trainer < (2, 2):
        fields = tuple(field for field in fields if field not in OF_TRAINER_2_2)
    label, tested = f"crd/{kind}", TESTED[kind]
    served = {v["name"]: v for v in crd["spec"]["versions"] if v.get("served")}
    if version not in served:
        text = f"it serves {', '.join(served) or 'nothing'}, and the chart renders {version}"
        other = "another operator's CRD of the same name: see docs/operators.md, both side by side"
        return Finding(label, "another's", text, f"install {tested}; {other}")
    spec = served[version].get("schema", {}).get("openAPIV3Schema", {}).get("properties", {}).get("spec", {})
    missing = [path for path in fields if not has(spec, path)]
    if missing:
        text = f"its {version} does not know spec.{', spec.'.join(missing)}"
        return Finding(label, "too old", text, f"update the operator: {tested} was tested")
    return None


def explain(objects: dict[str, list[dict]]) -> list[Finding]:
    """Explain the kinds that are missing or do not fit, as far as the release needs them.

    Helm refuses all of a release when it has one kind that the cluster lacks: where a job is there, none is missing.
    """
    trains = any(objects.get(kind) for kind in (*V1, trainjobs.TRAINJOBS, trainjobs.RUNTIMES))
    used = V1 if not (objects.get(trainjobs.TRAINJOBS) or objects.get(trainjobs.RUNTIMES)) else tuple(NEEDED)
    empty = not trains and not objects["jobs.batch"] and not objects["pods"]
    findings = []
    for one in objects["missing_kinds"]:
        if (one["kind"] in V1 and not trains) or (one["kind"] not in V1 and (empty or used != V1)):
            text = f"this cluster does not know {one['kind']}"
            only = "" if one["kind"] in V1 else ", if the release trains as a TrainJob"
            what = TESTED[one["kind"]].rpartition(" ")[0]
            findings.append(Finding(f"crd/{one['kind']}", "missing", text, f"install {what}{only} (docs/operators.md)"))
    named = trainjobs.named_version(objects.get(trainjobs.TRAINJOBS, []))
    misfits = [fit(crd, named) for crd in objects.get("crds", []) if crd["metadata"]["name"] in used]
    findings += [found for found in misfits if found]
    for one in objects.get("trainer_version", []) if used != V1 else []:
        if said := versions.skew(one["version"], written=named):
            own = "set trainjob.version to the cluster's"
            answer = own if named else f"update Kubeflow Trainer to {versions.TRAINER}, or {own}"
            findings.append(Finding("kubeflow-trainer", "version", said, answer))
    return findings
