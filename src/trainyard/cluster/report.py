"""Fetch the report page of a release's run to this machine, and open it.

    trainyard report RELEASE [-n NAMESPACE] [--run NAME] [--to FOLDER] [--open]

The page of a run that has not ended is written here from its records.
"""

import argparse
import json
import webbrowser
from pathlib import Path

from trainyard.cluster import claim_source, fetch, inventory, jobs, kube, parsing
from trainyard.cluster.errors import KubeError

PAGE = "report.html"
# The page, and what it is written from; not the checkpoints and weights, which may be gigabytes. $0 is the folder
SEND = f"""nothing() {{ echo "the run has recorded nothing yet" >&2; exit 1; }}
cd "$0" 2> /dev/null || nothing
for one in {PAGE} summary.json failed.json metrics.jsonl config.yaml validation; do
  [ ! -e "$one" ] || set -- "$@" "$one"
done
[ $# != 0 ] || nothing
LC_ALL=C tar -cf - "$@"; {fetch.SENT}"""
RESULTS = "/results/"  # where the pods have the claim


def runs(release: str, namespace: str) -> list[str]:
    """Return the run directories of a release's training jobs, below its folder of the results claim."""
    found = {}
    for settings in kube.items("configmaps", namespace, f"{inventory.INSTANCE}={release},{jobs.PART_OF}"):
        if settings["metadata"]["labels"].get(jobs.PART) in jobs.TRAINS and "config.json" in settings.get("data", {}):
            run = json.loads(settings["data"]["config.json"]).get("run", {}).get("dir", "")
            if run.startswith(RESULTS) and "$(" not in run:  # the runtime for Python has one for each of its jobs
                found[run.removeprefix(RESULTS)] = True
    return list(found)


def chosen(args: argparse.Namespace) -> str:
    """Return the run directory that the command line means; raises KubeError where there is none, or are several."""
    if args.run:
        return f"runs/{args.run}"
    found = runs(args.release, args.namespace)
    if len(found) == 1:
        return found[0]
    if not found:
        remedy = "name a run by --run, and its claim by --claim, if it lies on a claim that the release has left"
        raise KubeError(f"release {args.release} has no training job in namespace {args.namespace}: {remedy}")
    names = ", ".join(sorted(Path(one).name for one in found))
    raise KubeError(f"release {args.release} has several runs: name one by --run: {names}")


def page(folder: Path) -> Path:
    """Return the page in a folder of records; it is written where the run has not ended."""
    path = folder / PAGE
    if not path.exists():
        from trainyard.core.exits import UserError
        from trainyard.report import write

        try:
            write(folder)
        except UserError as error:
            raise KubeError(str(error)) from None
    return path


def report(args: argparse.Namespace) -> int:
    """Fetch the page that the command line names, print its path, and open it."""
    run = chosen(args)
    folder = args.to or Path(f"{args.release}-report")
    (folder / PAGE).unlink(missing_ok=True)  # that of an earlier look
    fetch.fetch(args.namespace, claim_source.named_by(args), run, folder, SEND)
    path = page(folder)
    print(json.dumps({"run": Path(run).name, "page": str(path.absolute())}) if args.json else path)
    if args.open and not webbrowser.open(path.absolute().as_uri()):
        raise KubeError(f"there is no browser to open {path} with: copy it to a machine that has one")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard report`."""
    own = parsing.command(
        "report",
        "Fetch the report page of a release's run: curves, accuracy, and where the seconds went, in one file.",
        """
        trainyard report run -n vision --open
        trainyard report run -n vision --to reports/monday
        trainyard report run -n vision --run seed-2
        """,
        {0: "the page is here, and its path is printed"},
        "The page of a run that has not ended shows what it has recorded so far. With a run directory of this machine "
        "in place of a release, its report.html is written again.",
    )
    own.add_argument("release")
    claim_source.add_options(own, "results")
    own.add_argument("--run", default="", metavar="NAME", help="run whose page is meant, if the release has several")
    own.add_argument("--to", type=Path, metavar="FOLDER", help="where it goes (default: RELEASE-report)")
    own.add_argument("--open", action="store_true", help="open it in the browser")
    own.add_argument("--json", action="store_true", help="print the run's name and the page's path as JSON")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Fetch the page that the command line names."""
    args = parser().parse_args(arguments)
    return parsing.run_command("report", lambda: report(args))
