"""Prepares a folder: archive directory, then plan, then shards, then the manifest.

A kill at any point leaves finished shards, and temporary files that are recognised; the same command resumes from there
and gives the same bytes. A complete folder is only checked.
"""

import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.core.exits import FULL, Exit, ExitError, InputError, UserError, explain_permissions
from trainyard.core.files import sync_folder
from trainyard.core.storage import StorageError, Tries
from trainyard.prepare import existing, rewriting
from trainyard.prepare.archives import open_container, open_object
from trainyard.prepare.archives.digest import check_sha256
from trainyard.prepare.catalogue import read_catalogue
from trainyard.prepare.class_names import Naming
from trainyard.prepare.job import Finished, Job, read_record
from trainyard.prepare.layouts import layout_of
from trainyard.prepare.lock import exclusive
from trainyard.prepare.looking import write_missing_page
from trainyard.prepare.members_file import write_members
from trainyard.prepare.plan import DatasetPlan, ShardPlan, make_plan, meaning
from trainyard.prepare.progress import ProgressMeter, say
from trainyard.prepare.publish import publish
from trainyard.prepare.settings import Preparation
from trainyard.prepare.since import said_of_source
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.retry import Patience
from trainyard.prepare.timing import Spent
from trainyard.prepare.workers import Crew
from trainyard.shards import manifest as manifests
from trainyard.shards.heartbeat import beating
from trainyard.shards.manifest import SPLITS, WORK, Manifest


@dataclass(frozen=True)
class Options:
    """How to work; nothing here changes the result."""

    # Of `parts` processes that share the work without communicating, this is number `part`
    part: int = 0
    parts: int = 1
    wait_seconds: float = 3600.0
    progress_seconds: float = 5.0
    patience: Patience | None = None
    # Shards whose files have their sizes and not their content, by the tar's name: they are replaced
    rebuild: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Meters:
    """The counts of a preparation while it works."""

    traffic: Traffic = field(default_factory=Traffic)
    spent: Spent = field(default_factory=Spent)


def build(config: Preparation, options: Options | None = None) -> Manifest | None:
    """Prepare the folder; return its manifest, or None when other parts still have shards to make.

    While storage fails, what is not finished is done again; the time for that (`storage.Tries`) begins anew with each
    shard that was finished. Raises UserError, InputError and ExitError.
    """
    options = options or Options()
    tries: Tries | None = None
    done = -1
    while True:
        try:
            manifest = _build(config, options)
            if manifest:
                write_missing_page(config.out)
            return manifest
        except OSError as error:
            before, done = done, _count_finished(config.out, done)
            if done > before:
                tries = Tries()
            failure = _storage_error(config.out, error)
            if isinstance(failure, InputError) or tries is None or tries.passed > tries.seconds:
                raise failure from None
            say(f"{error}; retried in {tries.pause:.1f} s, finished shards are kept")
            tries.wait()


def _build(config: Preparation, options: Options) -> Manifest | None:
    """Prepare the folder, once; raises OSError where storage fails."""
    config = existing.as_before(config)
    work = config.out / WORK
    if not options.rebuild and (manifest := existing.complete(config, look_only=True)):
        if options.part == 0 and (changed := said_of_source(config, manifest)):
            say(changed)
        return manifest
    for folder in (work, *(config.out / split for split in SPLITS)):
        _make(folder)
    with _locked(work, options), beating(config.out):
        return (None if options.rebuild else existing.complete(config)) or _prepare(config, options)


def _make(folder: Path) -> None:
    """Make a folder; raises InputError where a file is in its way, and OSError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{folder} cannot be made: a file is in its way; remove it, or give another folder") from None


def _count_finished(root: Path, default: int) -> int:
    """Return the number of records of finished shards, or `default` while they cannot be listed."""
    try:
        return sum(1 for _ in (root / WORK).glob("*-*.json"))
    except OSError:
        return default


def _storage_error(root: Path, error: OSError) -> Exception:
    """Explain a failed write: a full or forbidden disk is the user's to fix (InputError), anything else may pass."""
    if error.errno in FULL:
        return InputError(
            f"{root} is full ({os.strerror(error.errno)}): free space there or enlarge the claim, then run the same "
            "command again; finished shards are kept"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{root} cannot be written: {error.strerror}; {explain_permissions(root)}")
    return StorageError(f"writing to {root} failed: {error}; run the same command again, finished shards are kept")


@contextmanager
def _locked(work: Path, options: Options) -> Iterator[None]:
    """Lock the folder against all others; where parts share the work, against a whole preparation and the same part."""
    how = options.wait_seconds, say, options.progress_seconds
    with ExitStack() as locks:
        locks.enter_context(exclusive(work / "lock", *how, shared=options.parts > 1))
        if options.parts > 1:
            locks.enter_context(exclusive(work / f"lock-{options.part}", *how))
        yield


def _prepare(config: Preparation, options: Options) -> Manifest | None:
    """Do the work, with the folder locked."""
    started = time.monotonic()
    meters = Meters()
    with _of_the_input():
        source = open_object(config.source, meters.traffic, options.patience)
    try:
        with _of_the_input():
            if config.source.sha256:
                check_sha256(source, config.source.sha256, config.out / WORK)
        say(f"reading the directory of {source.label} ({source.size / 1e6:,.1f} MB)")
        with _of_the_input():
            archive = open_container(source, config.out / WORK, meters.traffic)
        names = Naming(config.class_file, config.class_names)
        catalogue = read_catalogue(archive, layout_of(config), frozenset(config.skip), names, config.convert != "none")
        plan = make_plan(catalogue, meaning(config))
        # The plan has its own copies: for ImageNet this frees 50 MB while shards are made
        catalogue = replace(catalogue, splits={})
        existing.refuse_other_archive(config.out, plan)
        job = Job(
            config.out, archive, plan.key, config.decode, config.convert, config.reencode,
            seekable="seekable" in meaning(config), leave_out=config.undecodable == "leave_out",
        )  # fmt: skip
        if config.seekable and not job.seekable:
            say("images are not made seekable: the decoder in C is not in this installation")
        directory_done = time.monotonic()
        _make_shards(job, plan, config.workers, options, meters)
        shards_done = time.monotonic()
        found = _gather(job, plan, options)
        if found is None:
            say(f"part {options.part} of {options.parts} is done; the others still have shards to make")
            return None
        write_members(config.out, archive, plan, found)
        manifest = publish(config, catalogue, plan, source, found)
    finally:
        source.close()
    _summarise(config, manifest, meters, (started, directory_done, shards_done, time.monotonic()))
    return manifest


@contextmanager
def _of_the_input() -> Iterator[None]:
    """Mark what is wrong with the source itself: it may be fixed while a preparation waits."""
    try:
        yield
    except UserError as error:
        if isinstance(error.__cause__, ImportError):  # an image gets no package while it waits
            raise
        raise InputError(str(error)) from None


def _summarise(
    config: Preparation, manifest: Manifest, meters: Meters, times: tuple[float, float, float, float]
) -> None:
    """Say what was made and where the time went."""
    traffic, seconds_of = meters.traffic, meters.spent.seconds
    counts = " and ".join(f"{split.samples:,} {name}" for name, split in manifest.splits.items())
    size = sum(split.bytes for split in manifest.splits.values())
    shards = sum(len(split.shards) for split in manifest.splits.values())
    directory, making, ending = (later - earlier for earlier, later in itertools.pairwise(times))
    asked = f"{traffic.requests:,} requests, {traffic.retries} retries"  # of a server
    calls = f"{traffic.requests:,} reads" if config.source.kind == "path" else asked
    say(
        f"prepared {config.out}: {counts} samples, {manifest.classes} classes, {shards} shards, {size / 1e6:,.1f} MB "
        f"in {times[-1] - times[0]:.1f} s (directory {directory:.1f}, shards {making:.1f}, manifest {ending:.1f}); "
        f"read {traffic.bytes / 1e6:,.1f} MB in {calls}"
    )
    if total := sum(seconds_of.values()):
        parts = ", ".join(f"{kind} {seconds:.1f} s ({seconds / total:.0%})" for kind, seconds in seconds_of.items())
        say(f"the {config.workers} workers' time went into: {parts}")
    if manifest.seekable is not None:
        kept = ", ".join(f"{count:,} {why}" for why, count in manifest.seekable.items() if why != rewriting.REWRITTEN)
        done = manifest.seekable.get(rewriting.REWRITTEN, 0)
        say(f"{done:,} images were made seekable; kept as they are: {kept or 'none'}")
    if manifest.left_out:
        say(f"{len(manifest.left_out)} images that cannot be decoded were left out; {manifests.FILE} names them")


def _make_shards(job: Job, plan: DatasetPlan, workers: int, options: Options, meters: Meters) -> None:
    """Make the shards of this part that are not finished yet, several requests at a time."""
    mine = plan.shards[options.part :: options.parts]
    _remove_rubbish(job, mine, alone=options.parts == 1)
    todo = [shard for shard in mine if f"{shard.stem}.tar" in options.rebuild or read_record(job, shard) is None]
    if len(todo) < len(mine):
        say(f"{len(mine) - len(todo)} of {len(mine)} shards are finished from before and kept")
    if not todo:
        return
    _check_space(job.root, todo)
    # A folder that lacks files must not look complete while they are made: trainers wait then. Where only content is
    # damaged they go on: files are replaced whole, by what their manifest promises.
    if manifests.exists(job.root) and manifests.wrong_files(job.root, manifests.load(job.root)):
        (job.root / manifests.FILE).unlink(missing_ok=True)
        sync_folder(job.root)
    samples = sum(len(shard.members) for shard in todo)
    with ProgressMeter(meters.traffic, samples=samples, shards=len(todo), every=options.progress_seconds) as progress:
        crew = Crew(job, todo, progress, meters.spent)
        crew.work(workers)
    if crew.undecodable:
        raise UserError(
            f"{len(crew.undecodable)} images of {job.container.source.label} cannot be decoded: "
            f"{'; '.join(sorted(crew.undecodable))}; name them under 'skip', or set decode: 'all' and undecodable: "
            "'leave_out' (finished shards are kept)"
        )


def _remove_rubbish(job: Job, mine: list[ShardPlan], *, alone: bool) -> None:
    """Remove temporary files of a killed preparation; other parts' files only if there are no other parts."""
    stems = {f"{shard.split}-{shard.number:05d}" for shard in mine}
    for path in job.work.glob("*.tmp"):
        if alone or path.name.removeprefix(".").partition(".")[0] in stems:
            path.unlink(missing_ok=True)
    for path in job.root.glob(".*.tmp") if alone else ():
        path.unlink(missing_ok=True)


def _check_space(root: Path, todo: list[ShardPlan]) -> None:
    """Raise UserError at once, not after hours, if the shards cannot fit."""
    needed = sum(shard.bytes + 64 * len(shard.members) for shard in todo)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise UserError(
            f"{root} has {free / 1e9:,.2f} GB free, and {needed / 1e9:,.2f} GB are needed: free space there or "
            "enlarge the claim, then run the same command again"
        )


def _gather(job: Job, plan: DatasetPlan, options: Options) -> list[Finished] | None:
    """Collect the records of all shards.

    Any part that finds all of them publishes, and all would publish the same bytes. Part 0 waits for the others while
    they make progress, so that one part is sure to publish where network storage shows files late.
    """
    best, since = -1, time.monotonic()
    while True:
        found = [record for shard in plan.shards if (record := read_record(job, shard))]
        if len(found) == len(plan.shards):
            return found
        if options.parts == 1:
            raise ExitError(
                f"files of {job.root} vanished while it was prepared; run the same command again", Exit.FAILED
            )
        if options.part != 0:
            return None
        if len(found) > best:
            best, since = len(found), time.monotonic()
        if time.monotonic() - since > options.wait_seconds:
            raise ExitError(
                f"the other parts made no shard for {options.wait_seconds:.0f} s ({best} of {len(plan.shards)} are "
                "finished); look at their pods, then run the same command again",
                Exit.FAILED,
            )
        say(f"waiting for the other parts: {best} of {len(plan.shards)} shards are finished")
        time.sleep(options.progress_seconds)
