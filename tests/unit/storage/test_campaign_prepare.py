"""A preparation under faults that nobody has scheduled: any call of up to three commands on one folder dies, fails, is
done twice or loses its answer, the machine may stop and lose what is not safe, and finished files may be damaged, and
so may what a preparation keeps for its next start: records of shards, a tar's listing, its unpacked copy.

At all times a folder that has its manifest has each file that it names, with the bytes of an undisturbed preparation;
two that live do not prepare at a time, unless they share the work; a command that ends well leaves a whole folder, and
any other end has words. When the faults are over, the same command comes to the same bytes.
"""

import functools
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, ClassVar

import pytest
from calls import Clock, inline
from campaign import HERE, Fault, Process
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from losing import REAL
from schedules import CALLS, FAULTS, Schedule, damaged, long, short

from tests.unit.prepare.make_archives import config, contents, imagenet, write_tar, write_zip
from trainyard.core import storage
from trainyard.core.exits import ExitError, UserError
from trainyard.prepare import build, lock, progress, timing, verify, workers
from trainyard.prepare.archives import stream
from trainyard.prepare.build import Options
from trainyard.prepare.plan import DatasetPlan
from trainyard.prepare.settings import Preparation
from trainyard.shards import heartbeat
from trainyard.shards import manifest as manifests

pytestmark = pytest.mark.takes(5)

WAIT = 300.0  # for another preparation; a dead one's lock is taken after 180
PARTS = 2
PACKINGS: dict[str, Callable[..., Path]] = {
    "zip": write_zip, "tar": write_tar, "tgz": functools.partial(write_tar, mode="w:gz"),
}  # fmt: skip
NOTES = ("*-*.json", "listing-*.jsonl", "unpacked-*.tar")  # of the work folder
MAKE_PLAN = build.make_plan


def small_shards(catalogue: Any, wanted: dict[str, Any]) -> DatasetPlan:
    """A plan with several shards of a few pictures."""
    return MAKE_PLAN(catalogue, {**wanted, "shard_mb": 0.016})


@functools.cache
def archive(packing: str) -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / f"archive.{packing}"
    return PACKINGS[packing](path, imagenet(12, 3)), folder


def settings(out: Path, seekable: bool, packing: str) -> Preparation:
    return config(archive(packing)[0], out, workers=1, decode="none", seekable=seekable)


@functools.cache
def undisturbed(seekable: bool, packing: str) -> dict[str, bytes]:
    """What an undisturbed preparation comes to."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_plan", small_shards)
        patch.setattr(build, "write_missing_page", lambda root: None)
        build.build(settings(Path(folder) / "little", seekable, packing))
        return contents(Path(folder) / "little")


class Inline(futures.Executor):
    """A pool that does its work when it is given."""

    def __init__(self, threads: int, **options: Any) -> None: ...

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        try:
            future.set_result(call(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)
        return future


class Campaign(Schedule):
    """Schedules of commands on a prepared folder."""

    total: ClassVar[Counter[str]] = Counter()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for seekable, packing in itertools.product((False, True), PACKINGS):
            undisturbed(seekable, packing)  # kept from here on: below, all belongs to processes
        self.out = self.world.root / "little"
        self.seekable, self.packing = False, "zip"
        self.damaged: dict[str, int] = {}  # by the number of processes at that time
        self.at_work: dict[Process, int] = {}  # how many parts share the work
        self.overtaken: set[Process] = set()  # those who were suspended while the lock was taken from a dead holder
        self.world.changed = self.changed
        for module in (storage, build, lock, progress, timing):
            patch.setattr(module, "time", Clock(self.world))
        for module in (lock, progress, heartbeat):
            patch.setattr(module, "threading", inline(over=True))
        for module in (workers, verify, stream):
            patch.setattr(module, "ThreadPoolExecutor", Inline)
        patch.setattr(build, "make_plan", small_shards)
        patch.setattr(build, "write_missing_page", lambda root: None)
        patch.setattr(build, "_prepare", functools.partial(self.prepare, build._prepare))
        patch.setattr(lock, "_beat", functools.partial(shown, lock._beat))

    @precondition(lambda self: self.few())
    @rule(
        command=st.sampled_from(["build"] * 4 + ["repair", "part 0", "part 1"]), faults=st.lists(FAULTS, max_size=4),
        beats=st.booleans(), now=CALLS,
    )  # fmt: skip
    def start(self, command: str, faults: list[Fault], beats: bool, now: int) -> None:
        self.add(lambda: self.run(command), "", faults, beats, now)

    @precondition(lambda self: not self.world.processes)
    @rule()
    def seekable_pictures(self) -> None:
        self.seekable = True

    @precondition(lambda self: not self.world.processes)
    @rule(packing=st.sampled_from(list(PACKINGS)))
    def another_archive(self, packing: str) -> None:
        self.packing = packing

    def run(self, command: str) -> str:
        """A command: how it ended."""
        what, _, part = command.partition(" ")
        wanted = settings(self.out, self.seekable, self.packing)
        before = len(self.world.processes)
        options = Options(int(part or 0), PARTS if part else 1, wait_seconds=WAIT)
        try:
            done = verify.repair(wanted, options) if what == "repair" else build.build(wanted, options)
        except (UserError, ExitError) as error:
            words = str(error)
            assert words, "no words"
            return f"{type(error).__name__}: {words}"
        if what == "repair" or done is not None:
            self.checks["end"] += 1
            self.whole("the end", before if what == "repair" else 0)
            return f"{what} finished"
        return "part finished"

    def prepare(self, prepare: Callable[..., Any], wanted: Preparation, options: Options) -> Any:
        """As `build._prepare`; two of those who live must not do it at a time."""
        process = HERE.process
        assert process is not None
        others = [other for other in self.at_work if other.beats and other not in self.overtaken]
        if process.beats and process not in self.overtaken:
            self.checks["one prepares"] += 1
            assert all(options.parts > 1 < self.at_work[other] for other in others), "two prepare at a time"
        self.at_work[process] = options.parts
        try:
            return prepare(wanted, options)
        finally:
            del self.at_work[process]

    def changed(self, process: Process, call: str, path: str) -> None:
        if call == "unlink" and Path(path).name.startswith("lock"):
            self.overtaken |= set(self.world.running) - {process}

    def check(self) -> None:
        if (self.out / manifests.FILE).exists():
            self.checks["manifest"] += 1
            self.whole("at all times")

    def whole(self, when: str, mended: int = 0) -> None:
        """Each file has its bytes, but those that the test has damaged, unless it did before that many processes."""
        here, HERE.process = HERE.process, None
        found = contents(self.out) if self.out.is_dir() else {}
        HERE.process = here
        wanted = undisturbed(self.seekable, self.packing)
        self.damaged = {name: at for name, at in self.damaged.items() if found.get(name) != wanted[name]}
        for name, content in wanted.items():
            if self.damaged.get(name, -1) < mended:
                assert found.get(name) == content, (when, name)

    def damage_one(self, chance: random.Random) -> str:
        """A file of the result, or what a preparation keeps for its next start."""
        wanted = undisturbed(self.seekable, self.packing)
        there = [name for name in sorted(wanted) if (self.out / name).is_file() and name != manifests.FILE]
        notes = sorted(path for note in NOTES for path in (self.out / manifests.WORK).glob(note) if path.stat().st_size)
        if not there and not notes:
            return ""
        if notes and (not there or chance.random() < 0.5):
            path = chance.choice(notes)
            return f"{path.name.partition('-')[0]}, {damaged(path, chance)}"
        name = chance.choice(there)
        self.damaged[name] = len(self.world.processes)
        return damaged(self.out / name, chance)

    def heal(self) -> None:
        """The command ends with the same bytes; where the test has changed some, after a repair.

        Where its own copy of the archive was damaged, it says so first, and makes another one.
        """
        for command in ("build", "repair") if self.damaged else ("build",):
            for _ in range(2):
                last = self.add(lambda command=command: self.run(command), "", [], True, 1_000_000)
                if "the copy was removed" not in last.outcome:
                    break
            assert last.outcome == f"{command} finished", last.outcome
        self.whole("healed", len(self.world.processes))


def shown(beat: Callable[..., None], descriptor: int, ended: Any) -> None:
    """As `lock._beat`, and again whenever others wait."""
    beat(descriptor, ended)
    process = HERE.process
    assert process is not None
    process.heart = functools.partial(alive, descriptor, itertools.count(1))


def alive(descriptor: int, numbers: Iterator[int]) -> None:
    try:
        name = REAL.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return
    if Path(name).name.startswith("lock"):
        REAL.pwrite(descriptor, f"a process{lock.BEAT}{next(numbers):010d}\n".encode(), 0)


def test_a_short_campaign() -> None:
    total = short(Campaign, 40)
    assert total["check: end"] > 40


@pytest.mark.soak
def test_a_long_campaign(record_property: Callable[[str, object], None]) -> None:
    long(Campaign, record_property, "preparation")
