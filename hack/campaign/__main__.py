"""Faults against a run on three nodes: python -m hack.campaign --seed 1 --faults 20 --operator pytorchjob.

The cluster must be up (`make cluster NODES=3`) and hold this tree's images; nothing else must run on it. The page and
its figures are written below build/campaign.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from hack.campaign import cluster, costs, disturb
from hack.campaign.cluster import ROOT, CommandError
from hack.campaign.faults import KINDS, Fault, draw, short
from hack.campaign.page import Measured, Row, render

STEPS_PER_FAULT, STEPS_PER_NODE = 120, 240  # of half a second: the run lasts longer than the schedule; with spare pods


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="hack.campaign", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the schedule's seed")
    add("--faults", type=int, default=20, help="how many faults; each kind comes once before one comes again")
    add("--operator", choices=("pytorchjob", "mpijob", "trainjob"), default="pytorchjob", help="the kind of job")
    add("--elastic", action="store_true", help="a PyTorchJob of three pods that goes on with two")
    add("--spares", type=int, default=0, help="pods more that wait for one to be lost")
    add("--only", action="append", choices=tuple(KINDS), metavar="KIND", help="draw this kind alone; may be repeated")
    add(
        "--peer",
        choices=tuple(disturb.SAVES),
        help="in place of our run peer.py, with a checkpoint an epoch or 100 steps",
    )
    add("--short", action="store_true", help="four faults, one of each sort, in place of the seed's")
    add("--minutes", type=float, default=0.0, help="make no fault after so many minutes; default: make all")
    add("--list", action="store_true", help="print the schedule and do nothing")
    return parser.parse_args()


def main() -> int:
    """Run a campaign; return 1 where the weights differ, or the run did not end."""
    asked = options()
    drawn = draw(asked.seed, asked.faults, asked.operator, asked.only or ())
    schedule = short() if asked.short else drawn
    if asked.list:
        for fault in schedule:
            print(f"{fault.gap} s of training, then {fault.kind}, for {fault.seconds} s (pod {fault.pod})")
        return 0
    tag = cluster.run(ROOT / "hack/images/tag").strip()  # which a node that comes back has, too
    spare = "spare" if asked.operator == "pytorchjob" else f"spare-{asked.operator}"
    forms = {f"peer-{asked.peer}": asked.peer, "elastic": asked.elastic, spare: asked.spares}
    form = next((name for name, wanted in forms.items() if wanted), asked.operator)
    name = f"{form}-{'short' if asked.short else asked.seed}"
    steps = (STEPS_PER_NODE if asked.spares else STEPS_PER_FAULT) * len(schedule)
    job = disturb.Job(f"campaign-{name}", asked.operator, tag, steps, asked.elastic, asked.spares, asked.peer or "")
    out = ROOT / "build/campaign" / name
    out.mkdir(parents=True, exist_ok=True)
    try:
        cluster.keep_operators_on_first_node()
        disturb.begin(job)
    except CommandError as error:
        disturb.say(f"{error}\n{disturb.why(job)}")
        disturb.close(job)
        return 1
    disturb.say(f"the run trains; {len(schedule)} faults, seed {asked.seed}")
    rows = make_faults(job, schedule, asked.minutes * 60, out)
    until = time.time()
    differs = None if job.peer else compare(job, out)
    events = job.events()
    measured = measure(job, events, until, differs)
    (out / "measured.json").write_text(json.dumps(measured._asdict()))
    page = render(f"Campaign: {name}, {len(rows)} of {len(schedule)} faults", rows, measured)
    (out / "page.md").write_text(page)
    print(page)
    disturb.close(job)
    # Other numbers of processes round otherwise, and a peer is not compared
    return 0 if rows and (job.peer or (differs is not None and (differs == 0 or job.elastic))) else 1


def make_faults(job: disturb.Job, schedule: list[Fault], limit: float, out: Path) -> list[Row]:
    """Make the faults of a schedule, for `limit` seconds where that is not 0; return those that were made.

    One that could not be made, or undone, is passed over; after two in a row the campaign ends.
    """
    rows: list[Row] = []
    failed = 0
    watch, begun = cluster.Watch(job.namespace, disturb.RELEASE), time.monotonic()
    try:
        for fault in schedule:
            if failed == 2 or disturb.finished(job) or (limit and time.monotonic() - begun > limit):
                break
            try:
                rows.append(disturb.perform(job, fault, watch))
            except CommandError as error:
                failed += 1
                disturb.say(f"{fault.kind}: passed over: {error}\n{disturb.why(job)}")
                cluster.succeeds(cluster.mend)
                cluster.succeeds(lambda: disturb.delete_pods(job))
                continue
            failed = 0
            disturb.say(f"{fault.kind}: {rows[-1].place}, {rows[-1].cost} {rows[-1].person}")
            (out / "rows.json").write_text(json.dumps(rows, indent=1))
    finally:
        watch.close()
        cluster.succeeds(cluster.mend)
    return rows


def compare(job: disturb.Job, out: Path) -> float | None:
    """Let the run end; return how far its weights are from those of an undisturbed run, None where it does not end."""
    try:
        disturb.end(job)
        folder = cluster.run_folder(job.namespace, disturb.RELEASE)
        assert folder is not None
        (out / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes())
        (out / "summary.json").write_bytes((folder / "summary.json").read_bytes())
        with tempfile.TemporaryDirectory() as calm:
            return disturb.difference(folder, disturb.undisturbed(job, Path(calm)))
    except CommandError as error:
        disturb.say(str(error))
        return None


def measure(job: disturb.Job, events: list[costs.Event], until: float, differs: float | None) -> Measured:
    """Return what the run measured as a whole, until the last fault was over."""
    folder = cluster.run_folder(job.namespace, disturb.RELEASE)
    summary = json.loads((folder / "summary.json").read_text()) if folder and (folder / "summary.json").exists() else {}
    saved = costs.of_kind(events, "checkpoint")
    waited = sum(event.get("stall", 0.0) for event in saved) or summary.get("seconds", {}).get("checkpoint", 0.0)
    kept, whole, step = costs.useful(events, until)
    every = step * (disturb.SAVES[job.peer] or disturb.EPOCH) if job.peer else 0.0
    return Measured(kept, whole, waited / max(len(saved), 1), step, differs, every)


if __name__ == "__main__":
    raise SystemExit(main())
