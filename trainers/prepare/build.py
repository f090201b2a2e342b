"""Prepares a folder: from the archive's directory over the plan to shards, and the manifest last.

Any kill at any point leaves finished shards and rubbish that is recognised; the same command goes on from there and
ends with the same bytes. A complete folder is only looked at.
"""

import itertools
import json
import shutil
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from trainers.exits import Exit, ExitError, UserError
from trainers.prepare import manifest as manifests
from trainers.prepare.archive import Archive
from trainers.prepare.catalogue import SPLITS, Catalogue, Layout, read_catalogue
from trainers.prepare.config import Config
from trainers.prepare.imagefolder import ImageFolder
from trainers.prepare.imagenet import ImageNet
from trainers.prepare.lock import exclusive
from trainers.prepare.manifest import Manifest, ShardEntry, SplitEntry
from trainers.prepare.plan import Plan, ShardPlan, make_plan
from trainers.prepare.progress import Progress
from trainers.prepare.sources import open_source
from trainers.prepare.sources.base import Source, Traffic
from trainers.prepare.sources.retry import Patience
from trainers.prepare.writer import WORK, Job, finished, storage_error, write_shard

LAYOUTS: dict[str, type[Layout]] = {"imagenet": ImageNet, "imagefolder": ImageFolder}


@dataclass(frozen=True)
class Options:
    """How to work, as opposed to what to make: nothing here changes the result."""

    # Of `parts` processes that share the work without talking, this is number `part`
    part: int = 0
    parts: int = 1
    wait_seconds: float = 3600.0
    progress_seconds: float = 5.0
    patience: Patience | None = None


class _StoppedError(Exception):
    """Another thread failed; this one ends too."""


def build(config: Config, options: Options | None = None) -> Manifest | None:
    """Prepare the folder; return its manifest, or None when other parts still have shards to make."""
    options = options or Options()
    work = config.out / WORK
    try:
        if manifest := _complete(config, look_only=True):
            return manifest
        for folder in (work, *(config.out / split for split in SPLITS)):
            folder.mkdir(parents=True, exist_ok=True)
        with exclusive(work / f"lock-{options.part}", options.wait_seconds, say, options.progress_seconds):
            return _complete(config) or _prepare(config, options)
    except OSError as error:
        raise storage_error(config.out, error) from None


def say(text: str) -> None:
    """Print a line about the work, at once."""
    print(text, file=sys.stderr, flush=True)


def _complete(config: Config, *, look_only: bool = False) -> Manifest | None:
    """Return the manifest of a folder that is complete; one made of other things is not to be touched."""
    if not manifests.exists(config.out):
        return None
    manifest = manifests.load(config.out)
    wanted = config.meaning()
    source = wanted.pop("source")
    found = {**manifest.settings, **{f"source.{key}": manifest.source.get(key) for key in source}}
    wanted |= {f"source.{key}": value for key, value in source.items()}
    if differing := [key for key in wanted if found.get(key) != wanted[key]]:
        changes = ", ".join(f"{key} was {found.get(key)!r} and is {wanted[key]!r}" for key in differing)
        raise UserError(f"{config.out} was prepared with other settings: {changes}; {_OTHER_FOLDER}")
    if problems := manifests.wrong_files(config.out, manifest):
        if not look_only:
            say(f"{problems[0]} ({len(problems)} wrong in all): preparing again what is missing")
        return None
    counts = " and ".join(f"{split.samples:,} {name}" for name, split in manifest.splits.items())
    say(f"{config.out} is complete ({counts} samples, sizes checked); nothing to do, nothing downloaded")
    return manifest


_OTHER_FOLDER = "give the dataset another name, or delete that folder"


def _prepare(config: Config, options: Options) -> Manifest | None:
    """Do the work, with the folder locked."""
    started = time.monotonic()
    traffic = Traffic()
    source = open_source(config.source, traffic, options.patience)
    try:
        say(f"reading the directory of {source.label} ({source.size / 1e6:,.1f} MB)")
        catalogue = read_catalogue(Archive(source), LAYOUTS[config.layout](), frozenset(config.skip))
        plan = make_plan(catalogue, config.meaning())
        _withdraw_manifest(config.out, plan)
        job = Job(config.out, source, plan.key, config.decode, lambda samples, payload: None)
        directory_done = time.monotonic()
        _make_shards(job, plan, config.workers, options, traffic)
        shards_done = time.monotonic()
        entries = _gather(job, plan, options)
        if entries is None:
            say(f"part {options.part} of {options.parts} is done; the others still have shards to make")
            return None
        manifest = _publish(config, catalogue, plan, source, entries)
    finally:
        source.close()
    _summarise(config, manifest, traffic, (started, directory_done, shards_done, time.monotonic()))
    return manifest


def _summarise(config: Config, manifest: Manifest, traffic: Traffic, times: tuple[float, float, float, float]) -> None:
    """Say what was made and where the time went."""
    counts = " and ".join(f"{split.samples:,} {name}" for name, split in manifest.splits.items())
    size = sum(split.bytes for split in manifest.splits.values())
    shards = sum(len(split.shards) for split in manifest.splits.values())
    directory, making, ending = (later - earlier for earlier, later in itertools.pairwise(times))
    say(
        f"prepared {config.out}: {counts} samples, {manifest.classes} classes, {shards} shards, {size / 1e6:,.1f} MB "
        f"in {times[-1] - times[0]:.1f} s (directory {directory:.1f}, shards {making:.1f}, manifest {ending:.1f}); "
        f"read {traffic.bytes / 1e6:,.1f} MB in {traffic.requests:,} requests, {traffic.retries} retries"
    )


def _withdraw_manifest(root: Path, plan: Plan) -> None:
    """Take away the manifest of a damaged folder before its shards are touched."""
    if not manifests.exists(root):
        return
    if manifests.load(root).plan != plan.key:
        raise UserError(f"the archive is not the one that {root} was prepared from; {_OTHER_FOLDER}")
    (root / manifests.FILE).unlink()
    manifests.sync_folder(root)


def _make_shards(job: Job, plan: Plan, workers: int, options: Options, traffic: Traffic) -> None:
    """Make the shards of this part that are not finished yet, several at a time."""
    mine = plan.shards[options.part :: options.parts]
    _remove_rubbish(job, mine, alone=options.parts == 1)
    todo = [shard for shard in mine if finished(job, shard) is None]
    if len(todo) < len(mine):
        say(f"{len(mine) - len(todo)} of {len(mine)} shards are finished from before and kept")
    _check_space(job.root, todo)
    stop = threading.Event()
    samples = sum(len(shard.members) for shard in todo)
    with Progress(traffic, samples=samples, shards=len(todo), every=options.progress_seconds) as progress:

        def on_samples(count: int, payload: int) -> None:
            if stop.is_set():
                raise _StoppedError
            progress.add(samples=count, payload=payload)

        def make(shard: ShardPlan) -> None:
            write_shard(replace(job, on_samples=on_samples), shard)
            progress.add(shards=1)

        pool = ThreadPoolExecutor(workers, thread_name_prefix="shard")
        futures = [pool.submit(make, shard) for shard in todo]
        try:
            _wait_for(futures)
        except BaseException:
            stop.set()
            job.source.close()
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread ends at its next request; one that hangs in the network is left to the process's end
            wait([future for future in futures if not future.cancelled()], timeout=5)
            raise
        pool.shutdown()


def _remove_rubbish(job: Job, mine: list[ShardPlan], *, alone: bool) -> None:
    """Remove what a killed preparation left half done; other parts' files only if there are none."""
    stems = {f"{shard.split}-{shard.number:05d}" for shard in mine}
    for path in job.work.glob("*.tmp"):
        if alone or path.name.removeprefix(".").partition(".")[0] in stems:
            path.unlink(missing_ok=True)
    for path in job.root.glob(".*.tmp") if alone else ():
        path.unlink(missing_ok=True)


def _wait_for(futures: list[Future[None]]) -> None:
    """Wait until all are done or one has failed, and raise its error; signals get through meanwhile."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()


def _check_space(root: Path, todo: list[ShardPlan]) -> None:
    """Refuse at once what cannot fit, rather than after hours."""
    needed = sum(shard.bytes + 64 * len(shard.members) for shard in todo)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise UserError(
            f"{root} has {free / 1e9:,.2f} GB free, and {needed / 1e9:,.2f} GB are needed: free space there or "
            "enlarge the claim, then run the same command again"
        )


def _gather(job: Job, plan: Plan, options: Options) -> list[ShardEntry] | None:
    """Collect the entries of all shards; part 0 waits for the other parts, as long as they get on."""
    best, since = -1, time.monotonic()
    while True:
        entries = [entry for shard in plan.shards if (entry := finished(job, shard))]
        if len(entries) == len(plan.shards):
            return entries
        if options.parts == 1:
            raise ExitError(
                f"files of {job.root} vanished while it was prepared; run the same command again", Exit.FAILED
            )
        if options.part != 0:
            return None
        if len(entries) > best:
            best, since = len(entries), time.monotonic()
        if time.monotonic() - since > options.wait_seconds:
            raise ExitError(
                f"the other parts made no shard for {options.wait_seconds:.0f} s ({best} of {len(plan.shards)} are "
                "finished); look at their pods, then run the same command again",
                Exit.FAILED,
            )
        say(f"waiting for the other parts: {best} of {len(plan.shards)} shards are finished")
        time.sleep(options.progress_seconds)


def _publish(config: Config, catalogue: Catalogue, plan: Plan, source: Source, entries: list[ShardEntry]) -> Manifest:
    """Write the classes, remove what does not belong to the plan, and write the manifest."""
    root = config.out
    classes = [{"index": i, "synset": c.synset, "name": c.name} for i, c in enumerate(catalogue.classes)]
    text = (json.dumps(classes, indent=1) + "\n").encode()
    manifests.write_atomically(root / manifests.CLASSES_FILE, text)
    known = {name for entry in entries for name in (entry.file, entry.index)}
    for split in SPLITS:
        for path in (root / split).iterdir():
            if f"{split}/{path.name}" not in known:
                path.unlink()
    meaning = config.meaning()
    splits = {}
    for split in SPLITS:
        shards = tuple(entry for entry, shard in zip(entries, plan.shards, strict=True) if shard.split == split)
        splits[split] = SplitEntry(sum(s.samples for s in shards), sum(s.bytes for s in shards), shards)
    manifest = Manifest(
        name=root.name,
        classes=len(classes),
        settings={key: value for key, value in meaning.items() if key != "source"},
        source={**meaning["source"], "bytes": source.size, "directory_sha256": catalogue.fingerprint},
        plan=plan.key,
        splits=splits,
        classes_sha256=manifests.sha256_file(root / manifests.CLASSES_FILE),
    )
    manifests.write_atomically(root / manifests.FILE, manifest.to_json().encode())
    return manifest
