"""Whether the cluster's operators are those that the chart speaks to: the versions and fields that its jobs use."""

from release.findings import Finding

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
}
TESTED = {"pytorchjobs.kubeflow.org": "training-operator 1.9.4", "mpijobs.kubeflow.org": "mpi-operator 0.8.2"}


def has(schema: dict, path: str) -> bool:
    """Whether an OpenAPI schema knows a dotted path."""
    for step in path.split("."):
        schema = schema.get("properties", {}).get(step)
        if schema is None:
            return False
    return True


def fit(crd: dict) -> Finding | None:
    """Explain a CRD that the chart's jobs do not fit; None where they do."""
    kind = crd["metadata"]["name"]
    version, fields = NEEDED[kind]
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
