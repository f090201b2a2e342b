"""Look at a cluster before anything is installed: what would stop a run, with the remedy.

Ends with 0 where nothing would stop a run, 1 where something would, 2 where there is no
cluster or no Helm, or the words are wrong.
"""

import argparse
import json
import sys
from pathlib import Path

from trainyard.cluster import helm, parsing, proposal, published, survey, trials
from trainyard.cluster.checks import (
    api,
    images,
    kueue,
    named_claims,
    namespace,
    network,
    nodes,
    operators,
    probes,
    references,
    volumes,
)
from trainyard.cluster.checks.diagnosis import ERROR, NOTE, WARNING, Check, Diagnosis, check, forbidden
from trainyard.cluster.demand import (
    PLACEHOLDER,
    Demand,
    assume,
    list_required,
    merge,
    read_values,
    render,
    split,
)
from trainyard.cluster.errors import KubeError
from trainyard.cluster.parsing import WrongInputError
from trainyard.cluster.survey import DEFINITIONS, ClusterSurvey
from trainyard.core.exits import Exit, printable


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = parsing.command(
        "doctor",
        __doc__.splitlines()[0],
        """
        trainyard doctor -n vision
        trainyard doctor -n vision --values fits.yaml
        trainyard doctor -n vision -f run.yaml --json | jq -r '.findings[].remedy'
        """,
        {0: "nothing would stop a run", 1: "something would stop a run: a remedy is printed"},
        "Probes are claims and pods that live for seconds and are removed; --no-probe creates nothing.",
    )
    add = made.add_argument
    add("-n", "--namespace", default="default", help="the run's namespace, which need not exist yet (default)")
    add("-f", dest="files", metavar="VALUES", action="append", default=[],
        help="values of the run; may be repeated; the chart is rendered with them by helm")  # fmt: skip
    add("--nodes", type=positive, help="nodes of the run (that of -f, else 1)")
    add("--gpus-per-node", type=positive_or_zero, help="GPUs of each node (that of -f, else what nodes have)")
    add("--operator", choices=list(operators.OPERATOR_OF), help="the kind of job (that of -f, else what is installed)")
    add("--image", default="", help="an image that pods of the run would have, to be pulled and started")
    add("--chart", default="", metavar="REF",
        help="a folder, a package or oci://... (TRAINYARD_CHART, the published one, or a checkout's)")  # fmt: skip
    add("--values", metavar="FILE", help="write a values file that fits this cluster")
    add("--no-probe", action="store_true", help="create nothing: no probe claim and no probe pod")
    add("--seconds", type=float, default=60.0, help="most seconds for a claim to be bound, a pod to start (60)")
    add("--json", action="store_true", help="print JSON")
    return made


def positive(text: str) -> int:
    """Read a number of at least 1."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def positive_or_zero(text: str) -> int:
    """Read a number of at least 0."""
    if int(text) < 0:
        raise ValueError(text)
    return int(text)


def find_job_kind(seen: ClusterSurvey) -> str:
    """Return the kind of job that the cluster's operators run: PyTorchJobs, the chart's default, unless only others."""
    known = {crd["metadata"]["name"] for crd in seen.of(DEFINITIONS)}
    for name, operator in operators.OPERATOR_OF.items():
        if operators.find_deployments(operator, seen.of("deployments")) or known & set(operator.kinds):
            return name
    return "pytorchjob"


def describes_run(args: argparse.Namespace) -> bool:
    """Whether an option says something of a run, which only the chart can turn into objects."""
    return any((args.files, args.nodes, args.gpus_per_node is not None, args.operator, args.chart, args.values))


def ask(args: argparse.Namespace, own: dict, seen: ClusterSurvey) -> Demand:
    """Return what the run asks: the user's values, or a run of some nodes with the GPUs that nodes have.

    Raises KubeError where a run is described and the chart cannot be rendered.
    """
    chart = published.find_chart(args.chart)
    if own:
        training = {"nodes": args.nodes, "gpusPerNode": args.gpus_per_node, "operator": args.operator}
        over: dict = {"training": {key: value for key, value in training.items() if value is not None}}
        if args.image:
            over["image"] = dict(zip(("registry", "tag"), split(args.image), strict=True))
        values = merge(own, {"global": over})
        said = f"the run of {', '.join(args.files)}"
    else:
        resource, each, having = proposal.gpu_nodes(seen)
        gpus = each if args.gpus_per_node is None else args.gpus_per_node
        gpus = nodes.distinct_gpus(resource, gpus, having)
        count, operator = args.nodes or 1, args.operator or find_job_kind(seen)
        image = args.image or ("" if chart == published.CHART else PLACEHOLDER)
        values = assume(operator, count, gpus, resource or "nvidia.com/gpu", image)
        if operator == "trainjob" and (version := operators.version_to_set(seen)):
            values["trainjob"] = {"version": version}
        with_gpus = f"with {gpus} GPUs each" if gpus else "without GPUs"
        said = f"a run on {count} {'node' if count == 1 else 'nodes'} {with_gpus} ({operator})"
    assumed = not own and not args.operator
    try:
        objects, refused = render(values, chart, args.namespace, seen.version)
    except KubeError as error:
        if describes_run(args):
            raise
        return Demand(said, assumed, values, [], problem=str(error))
    return Demand(said, assumed, values, objects, refused=refused)


def look(args: argparse.Namespace, seen: ClusterSurvey, demand: Demand) -> tuple[list[trials.Answer], probes.Shown]:
    """Try the run's objects, and probe storage, images and names; return what was answered and shown."""
    answers = trials.run(demand, seen.namespace) if takes_objects(seen) else []
    if args.no_probe:
        return answers, probes.NOTHING._replace(why="nothing is created with --no-probe")
    where = seen.namespace if takes_objects(seen) else "default"
    try:
        return answers, probes.show(seen, demand, where, args.image, args.seconds)
    except KubeError as error:
        return answers, probes.NOTHING._replace(why=str(error))


def takes_objects(seen: ClusterSurvey) -> bool:
    """Whether the run's namespace is there, and not being deleted; where this user may not look, trying it tells."""
    return "namespace" in seen.unseen or namespace.check_state(seen.space(), seen.namespace) is None


def diagnose(seen: ClusterSurvey, demand: Demand, answers: list[trials.Answer], shown: probes.Shown) -> list[Check]:
    """Return all checks of what was read, answered and shown."""
    named = named_claims.examine(seen, demand)
    refusals = [*shown.unproven, *(one.unproven for one in shown.claims), shown.why]
    checks = [
        api.examine(seen, refusals),
        operators.examine(seen, demand),
        nodes.examine(seen, demand),
        volumes.examine(seen, demand, shown.claims, shown.why, [*named, *(one.diagnosis() for one in shown.kept)]),
        images.examine(shown, demand, seen.of("nodes")),
        kueue.examine(seen, demand),
        namespace.examine(seen, demand),
        network.examine(seen, demand, *images.resolution(shown)),
    ]
    earlier = [one for each in checks for one in each.wrong]
    return [*checks, trials.examine(seen, demand, answers, earlier, takes_objects(seen)), permissions(seen)]


def permissions(seen: ClusterSurvey) -> Check:
    """Check what this user may look at, and whether Helm may keep its release."""
    wrong = [forbidden(kind, why) for kind, why in sorted(seen.unseen.items())]
    if not seen.keeps:
        text = f"this user may not create secrets in {seen.namespace}, in which helm keeps its release"
        wrong.append(Diagnosis(ERROR, "secrets", text, "ask for a role that may (such as the ClusterRole admin)"))
    return check("permissions", ["this user may look at all that was asked, and install"], wrong)


def show(checks: list[Check], demand: Demand) -> str:
    """Lay checks out for people: a line for each that is sound; object, what was seen and remedy of what is not."""
    width, lines = max(len(one.title) for one in checks), []
    for one in checks:
        if one.sound and not one.wrong:
            lines.append(f"{'ok':8} {one.title:{width}}  {one.sound}")
        for level, name, seen, remedy in one.wrong:
            lines += [f"{level:8} {one.title:{width}}  {name}: {seen}", f"{'':8} {'':{width}}  remedy: {remedy}"]
        lines += [f"{'unproven':8} {one.title:{width}}  {text}" for text in one.unproven]
    return printable("\n".join([*lines, "", verdict(checks, demand)]))


def verdict(checks: list[Check], demand: Demand) -> str:
    """Say in one line what the checks mean for the run."""
    levels = [one.level for each in checks for one in each.wrong]
    count = {level: levels.count(level) for level in (ERROR, WARNING, NOTE)}
    told = ", ".join(f"{number} {level}{'s' * (number > 1)}" for level, number in count.items() if number)
    if count[ERROR]:
        return f"{told}: {demand.said} would be stopped"
    if demand.problem:
        return f"{told or 'nothing found'} on the cluster; no run was examined: {demand.problem}"
    return f"{told or 'nothing found'}: nothing would stop {demand.said}"


def as_json(checks: list[Check], demand: Demand, seen: ClusterSurvey) -> str:
    """Return the checks as JSON: `findings` are what is wrong, `checks` say what is sound and what was not proven."""
    findings = [{"check": each.title, **one._asdict()} for each in checks for one in each.wrong]
    told = [{"check": one.title, "sound": one.sound, "unproven": list(one.unproven)} for one in checks]
    return json.dumps({"namespace": seen.namespace, "kubernetes": seen.version, "asked": demand.said,
                       "rendered": bool(demand.objects), "findings": findings, "checks": told}, indent=1)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong; end 1 when something would stop a run, 2 when the cluster cannot be read."""
    args = parser().parse_args(arguments)
    try:
        if describes_run(args):
            helm.program()
        own = read_values(args.files)
        seen = survey.read(args.namespace)
        demand = ask(args, own, seen)
        survey.read_named(seen, list_required(demand))
        survey.read_kinds(seen, references.list_kinds(demand))
        survey.read_usage(seen, named_claims.list_claims(demand))
        answers, shown = look(args, seen, demand)
        checks = diagnose(seen, demand, answers, shown)
        if args.values:
            Path(args.values).write_text(proposal.write(seen, demand, shown.claims, args.nodes or 0))
    except (KubeError, WrongInputError, OSError) as error:
        print(printable(f"doctor: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("doctor: interrupted; the probes have been removed, or are named above", file=sys.stderr)
        return Exit.INTERRUPTED
    print(as_json(checks, demand, seen) if args.json else show(checks, demand))
    return int(any(one.level == ERROR for each in checks for one in each.wrong))
