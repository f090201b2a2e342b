"""Server-side dry runs: what admission says of a run's real objects and of the pods that operators would make of them.

Nothing is stored. A pod is tried as this user, not as the operator's account: rules about accounts may say otherwise.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from trainyard.cluster import kube, remedies
from trainyard.cluster.checks.diagnosis import ERROR, Check, Diagnosis, check, several
from trainyard.cluster.checks.webhooks import plural
from trainyard.cluster.demand import IMAGE, JOBS, Demand, PodGroup
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.survey import ClusterSurvey

NOT_MINE = re.compile(r'cannot create resource "([\w.]+)"')  # a role's refusal
NO_DRY_RUN = re.compile(r"does not support dry ?run|dryRun|side effects", re.I)
NO_ANSWER = re.compile(r'failed calling webhook "?([\w.-]+)')
LATE = re.compile(r"failed calling webhook .*(context deadline exceeded|Client\.Timeout)", re.S)


class Answer(NamedTuple):
    """The API server's answer for one object; an empty text is a yes."""

    label: str
    text: str
    status: int = 0


def pod(group: PodGroup) -> dict:
    """Return a pod as an operator would make it of a template."""
    meta = {key: group.template.get("metadata", {}).get(key, {}) for key in ("labels", "annotations")}
    spec = {"restartPolicy": "Never"} | group.spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "doctor-", **meta}, "spec": spec}


def address(thing: dict, namespace: str) -> str | None:
    """Return where objects of a kind are created; None where the cluster does not know it."""
    group = thing["apiVersion"].rpartition("/")[0]
    name = plural(thing["kind"])
    place = kube.known(f"{name}.{group}" if group else name)
    if place is None:
        return None
    path = f"/apis/{thing['apiVersion']}" if group else "/api/v1"
    return place._replace(path=path).address(namespace)


def attempt(label: str, thing: dict, namespace: str) -> Answer:
    """Ask the API server for an object, without storing it; once more where a webhook was late, as a busy one is."""
    first = ask(label, thing, namespace)
    return ask(label, thing, namespace) if LATE.search(first.text) else first


def ask(label: str, thing: dict, namespace: str) -> Answer:
    """Ask the API server once."""
    try:
        where = address(thing, namespace)
        if where is None:
            return Answer(label, f"this cluster does not know the kind {thing['kind']} ({thing['apiVersion']})", 404)
        kube.read(where, {"dryRun": "All"}, method="POST", body=thing)
    except RefusedError as error:
        return Answer(label, "" if error.status == 409 else str(error), error.status)
    except KubeError as error:
        return Answer(label, str(error), 504)
    return Answer(label, "")


def run(demand: Demand, namespace: str) -> list[Answer]:
    """Try all objects of a run that were rendered by the chart, and its pods."""
    things = [
        (f"{one['kind'].lower()}/{one['metadata']['name']}", one) for one in demand.objects if one["kind"] != "TrainJob"
    ]
    things += [(f"pods of the {group.name}", pod(group)) for group in demand.groups]
    if not things:
        return []
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda one: attempt(one[0], one[1], namespace), things))


def is_explained(text: str, earlier: list[Diagnosis]) -> bool:
    """Whether another check has named what a refusal is about."""
    for one in earlier:
        kind, _, name = one.object.partition("/")
        if name and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) and kind in (
            "resourcequota", "serviceaccount", "priorityclass", "runtimeclass"
        ):  # fmt: skip
            return True
        if kind == "limitrange" and re.search(r"(maximum|minimum|max limit|ratio).*(usage|limit|per )", text):
            return True
        if "violates PodSecurity" in text and (kind == "namespace" or "init container" in one.seen):
            return True
        hook = NO_ANSWER.search(text)
        if hook and one.seen.startswith(hook[1].rstrip(".")):
            return True
    return False


def drop_names(text: str) -> str:
    """Return a refusal without the names of the one object that it is about."""
    text = re.sub(r'^(\S+) "[^"]*" is (forbidden|invalid):', r"\2:", " ".join(text.split()))
    return re.sub(r'^(\w+)\.[\w.]+ "[^"]*" is (forbidden|invalid):', r"\2:", text)


def answer(text: str) -> str:
    """Return what to do about a refusal."""
    if hook := NO_ANSWER.search(text):
        both = "validatingwebhookconfiguration,mutatingwebhookconfiguration"
        return f"start what answers the webhook {hook[1]}: kubectl get {both}"
    if "conversion webhook" in text:
        return "start the operator that converts this kind (kubectl get pods -A), or install its CRD anew"
    if found := re.search(r"does not know the kind (\w+)", text):
        return f"install what brings {found[1]}, or take out of values what asks for it"
    if found := NOT_MINE.search(text):
        return f"ask for a role that may create {found[1]} in this namespace"
    return remedies.remedy(text) or "a rule of the cluster refuses it: change in values what the message names"


def judge(answers: list[Answer], demand: Demand, earlier: list[Diagnosis]) -> Iterator[Diagnosis | str]:
    """Yield what is wrong by the API server's answers, each refusal once; and as text what they could not show."""
    refused: dict[str, list[str]] = {}
    own = re.compile(rf"kind ({'|'.join((*JOBS, 'TrainingRuntime'))}) ")
    for label, text, _ in answers:
        mine = NOT_MINE.search(text)
        if not text or is_explained(text, earlier) or own.search(text):  # operators are a check of their own
            continue
        if NO_DRY_RUN.search(text):
            yield f"dry run of {label}: {drop_names(text)}"
        elif mine and label.startswith("pods of"):
            yield f"dry run of {label}: this user may not create pods, which operators do"
        elif demand.placeholder and (IMAGE.partition("/")[0] in text or re.search(r"image|registr", text)):
            yield f"dry run of {label}: a rule looks at images: name yours with -f or --image ({drop_names(text)})"
        else:
            refused.setdefault(drop_names(text), []).append(label)
    for text, labels in refused.items():
        yield Diagnosis(ERROR, several(labels, 2), f"refused: {text}", answer(text))


def examine(
    survey: ClusterSurvey, demand: Demand, answers: list[Answer], earlier: list[Diagnosis], takes: bool
) -> Check:
    """Check what admission says; `takes` says that the namespace takes objects, so that they were tried."""
    title = "admission"
    if demand.refused:
        bad = Diagnosis(ERROR, "values", f"the chart refuses them: {demand.refused}", "correct the key that it names")
        return check(
            title, wrong=[bad], unproven=["room, storage and a server-side dry run: there are no objects of the run"]
        )
    if demand.problem:
        return check(title, unproven=[f"server-side dry run of the run's objects: {demand.problem}"])
    if not takes or not answers:
        return check(title, unproven=[f"server-side dry run: namespace {survey.namespace} does not take objects"])
    found = list(judge(answers, demand, earlier))
    wrong = [one for one in found if isinstance(one, Diagnosis)]
    told_by_others = any(is_explained(one.text, earlier) for one in answers if one.text)
    sound = [] if wrong or told_by_others else [f"{len(answers)} objects and pods of the run would be admitted"]
    return check(title, sound, wrong, [one for one in found if isinstance(one, str)])
