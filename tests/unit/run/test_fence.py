"""The lease on a model of network storage: over many schedules of jobs that die, are suspended and see old names, no
older holder ever publishes after a newer one has the run directory, and nothing is lost.

What runs is the trainers' own code; only storage, clock and threads are the model's.
"""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from network_storage import HERE, Machine, Meets, Node, Server, World

from trainyard.core.exits import ExitError
from trainyard.run import fence, lease, lease_files
from trainyard.run.owner import TakenOverError

pytestmark = pytest.mark.takes(20)

ROOT = Path("/run")
CHECKPOINTS = ROOT / "checkpoints"
WEIGHTS = ROOT / "published" / "model.pth"
STEPS = 4


class Holder(Protocol):
    """A lease as a trainer uses it: this project's, or that of version 0.1.0."""

    holder: str

    def take(self, checkpoints: Path) -> object: ...
    def held(self) -> bool: ...
    def publish_checkpoint(self, name: str, manifest: bytes) -> None: ...
    def publish_weights(self, content: bytes) -> None: ...
    def release(self) -> None: ...


class Ours(lease.Lease):
    """This project's lease."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(ROOT, on=machine)
        self.holder = f"h{machine.world.random.getrandbits(40):010x}"
        self.machine = machine

    def _show_alive(self) -> None:
        self.machine.world.start_thread(self._beat)

    def publish_checkpoint(self, name: str, manifest: bytes) -> None:
        staged = self.folder / f".{name}.tmp"
        with contextlib.suppress(FileExistsError):
            self.machine.make(staged)
        self.machine.write(staged / "manifest.json", manifest)
        if self.held():
            fence.publish_folder(self.machine, staged, CHECKPOINTS / name, "manifest.json")

    def publish_weights(self, content: bytes) -> None:
        if self.held():
            assert self._record is not None
            fence.put(self.machine, ROOT, self._record, WEIGHTS, content)


class Older:
    """The lease of version 0.1.0: a file that is read and then written, and read again before a rename beside it."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.holder = machine, f"h{machine.world.random.getrandbits(40):010x}"

    def take(self, checkpoints: Path) -> None:
        old = self._read(ROOT / "lease.json")
        for _ in range(2):
            saved = [name for name in self.machine.names(checkpoints) if name.startswith("step-")]
            writers = {name: self._read(checkpoints / name / "manifest.json").get("holder") for name in saved}
            known = old.get("trusted", saved)
            trusted = [name for name in saved if name in known or writers[name] == old.get("holder")]
            self._put(ROOT / "lease.json", json.dumps({"holder": self.holder, "trusted": trusted}).encode())
        for name in set(saved) - set(trusted):
            self.machine.rename(checkpoints / name, checkpoints / f"late-{name}-{self.holder}")

    def held(self) -> bool:
        return bool(self._read(ROOT / "lease.json").get("holder") == self.holder)

    def publish_checkpoint(self, name: str, manifest: bytes) -> None:
        temporary, final = CHECKPOINTS / f".{name}.{self.holder}", CHECKPOINTS / name
        self.machine.make(temporary)
        self.machine.write(temporary / "manifest.json", manifest)
        if not self.held():
            return
        with contextlib.suppress(FileNotFoundError):
            self.machine.rename(final, CHECKPOINTS / f".{name}.trash.{self.holder}")
        self.machine.rename(temporary, final)

    def publish_weights(self, content: bytes) -> None:
        if self.held():
            self._put(WEIGHTS, content)

    def release(self) -> None: ...

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.machine.read(path))
        except (OSError, ValueError):
            return {}
        return found

    def _put(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{self.holder}")
        self.machine.write(temporary, data)
        self.machine.rename(temporary, path)


Scheme = Callable[[Machine], Holder]


@dataclass
class Trial:
    """One schedule: jobs on machines of their own, one storage, and what happened in the server's order."""

    scheme: Scheme
    world: World
    server: Server = field(default_factory=Server)
    lost_answers: float = 0.0
    holders: list[str] = field(default_factory=list)  # in the order in which they got the run directory
    number: int = 0  # of the newest lease among theirs
    steps: dict[str, int] = field(default_factory=dict)  # published checkpoints of who then had the run directory
    published: int = 0
    late: list[str] = field(default_factory=list)  # published by a holder after a newer one had the run directory
    used_late: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)  # checkpoints that a start did not find
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        run = self.server.add(0, ROOT.name, Node(entries={}))
        for path in (CHECKPOINTS, WEIGHTS.parent):
            self.server.add(run, path.name, Node(entries={}))

    def start(self, job: str, after: float = 0.0, meets: Meets | None = None) -> None:
        """A start of a job."""
        machine = Machine(self.world, self.server, self.lost_answers)
        self.world.start(lambda: self._train(machine), job, after, meets)

    def _train(self, machine: Machine) -> None:
        holder = self.scheme(machine)
        machine.renamed = lambda _, new: self._renamed(holder, new)  # type: ignore[method-assign]
        try:
            outcome = self._train_as(holder, machine)
        except (TakenOverError, ExitError) as error:
            outcome = type(error).__name__
        except OSError:
            if isinstance(holder, Ours) and self.server.fences and holder.held():
                raise
            outcome = "lost"
        self.outcomes[outcome] += 1

    def _train_as(self, holder: Holder, machine: Machine) -> str:
        """What a first process does with its run directory."""
        holder.take(CHECKPOINTS)
        there = max(self.steps.values(), default=0)  # nobody else has published since, or this one learns it below
        done = self._resume(machine)
        if done < there and holder.held():
            self.forgotten.append(f"{holder.holder} found {done} of {there}")
        for step in range(done + 1, STEPS + 1):
            machine.sleep(machine.world.random.uniform(1, 30))
            if not holder.held():
                return "lost"
            name = f"step-{step:08d}"
            holder.publish_checkpoint(name, json.dumps({"holder": holder.holder, "step": step}).encode())
        holder.publish_weights(holder.holder.encode())
        holder.release()
        return "finished"

    def _resume(self, machine: Machine) -> int:
        names = sorted(name for name in machine.names(CHECKPOINTS) if name.startswith("step-"))
        if not names:
            return 0
        found = json.loads(machine.read(CHECKPOINTS / names[-1] / "manifest.json"))
        self.used_late += [name for name in [f"{found['holder']} {names[-1]}"] if name in self.late]
        return int(found["step"])

    def _renamed(self, by: Holder, new: Path) -> None:
        """The server has given something its final name."""
        holder, number = by.holder, by.number if isinstance(by, Ours) else self.number
        # Where storage does not fence, one that is late with this has not got the directory back
        if new == ROOT / "lease.json" and holder not in self.holders and number >= self.number:
            self.holders.append(holder)
            self.number = number
        if new == WEIGHTS or (new.parent == CHECKPOINTS and new.name.startswith("step-")):
            self.published += 1
            if self.holders[-1:] != [holder]:
                self.late.append(f"{holder} {new.name}")
            elif new != WEIGHTS:
                self.steps[new.name] = int(new.name[5:])


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "job_name", lambda: HERE.process.job)
    monkeypatch.setattr(fence, "BEAT_SECONDS", 7.0)  # fewer calls, more schedules


def random_trial(scheme: Scheme, seed: int, **server: Any) -> Trial:
    """Two to four starts of up to three jobs, of which any may die or be suspended for up to minutes."""
    chance = random.Random(seed)
    trial = Trial(scheme, World(chance, chance.choice([0.02, 0.2, 0.7])), Server(**server), chance.choice([0, 0, 0.1]))
    for _ in range(chance.randint(2, 4)):
        meets = Meets(chance.randint(1, 160), chance.choice([0, 2, 30, 90, 400])) if chance.random() < 0.8 else None
        trial.start(chance.choice(["", "a", "b", "c"]), chance.choice([0, 0, chance.uniform(0, 90)]), meets)
    trial.world.run()
    return trial


Tell = Callable[[str, list[Trial]], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Print what a number of schedules gave."""

    def tell(what: str, trials: list[Trial]) -> None:
        outcomes = sum((trial.outcomes for trial in trials), Counter())
        with capsys.disabled():
            print(
                f"\n{what}: {len(trials)} schedules, {sum(trial.published for trial in trials)} publications, "
                f"{sum(len(trial.late) for trial in trials)} by a holder after a newer one in "
                f"{sum(bool(trial.late) for trial in trials)} schedules, {sum(len(t.used_late) for t in trials)} used; "
                + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            )

    return tell


def sound(trials: list[Trial]) -> None:
    for number, trial in enumerate(trials):
        assert (trial.late, trial.used_late, trial.forgotten) == ([], [], []), number


@pytest.mark.parametrize("schedules", [150, pytest.param(20_000, marks=pytest.mark.soak)])
def test_no_two_ever_publish(schedules: int, tell: Tell) -> None:
    trials = [random_trial(Ours, seed) for seed in range(schedules)]
    tell("numbered leases, at random", trials)
    sound(trials)
    assert sum(trial.outcomes["lost"] + trial.outcomes["TakenOverError"] for trial in trials) > schedules / 4


def interrupted(scheme: Scheme, at: int, seconds: float, seed: int = 0) -> Trial:
    """A job that is suspended (0: dies) right before its call number `at`, and one that comes meanwhile."""
    trial = Trial(scheme, World(random.Random(seed), 0.0))
    trial.start("a", meets=Meets(at, seconds))
    trial.start("b", 40.0)
    trial.start("a", 300.0)  # the older one is started again, after the newer one has ended
    trial.world.run()
    return trial


def calls_of_a_life(scheme: Scheme) -> int:
    trial = Trial(scheme, World(random.Random(0), 0.0))
    trial.start("a", meets=(meets := Meets()))
    trial.world.run()
    return meets.calls


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_a_job_interrupted_at_any_call(seconds: float, tell: Tell) -> None:
    trials = [interrupted(Ours, at, seconds) for at in range(1, calls_of_a_life(Ours) + 1)]
    tell(f"numbered leases, {'suspended' if seconds else 'killed'} before each call", trials)
    sound(trials)
    assert all(trial.outcomes["finished"] for trial in trials)


def test_the_former_scheme_fails(tell: Tell) -> None:
    trials = [interrupted(Older, at, 100.0) for at in range(1, calls_of_a_life(Older) + 1)]
    tell("the lease of 0.1.0, suspended before each call", trials)
    assert any(trial.late for trial in trials)


@pytest.mark.parametrize("seed", range(10))
def test_a_lease_that_gets_its_number_while_an_older_one_tidies_up_stays_whole(seed: int) -> None:
    """The older one's cache still shows the folder under the name that it had before."""
    world, server, leases = World(random.Random(seed), 0.0), Server(), ROOT / fence.FOLDER
    run = server.add(0, ROOT.name, Node(entries={}))
    server.add(run, fence.FOLDER, Node(entries={}))
    newer, older = Machine(world, server), Machine(world, server)
    seen: list[bytes] = []

    def listed(folder: Path) -> list[str]:
        names = Machine.fresh_names(older, folder)
        for name in names:
            older.names(folder / name)
            if name.startswith(fence.NEW):
                newer.rename(folder / name, fence.folder_of(ROOT, 2))
        return names

    def body() -> None:
        newer.make(leases / f"{fence.NEW}b")
        newer.write(leases / f"{fence.NEW}b" / fence.RECORD, b"{}")
        older.fresh_names = listed  # type: ignore[method-assign]
        fence.fence(older, ROOT, fence.Record(number=1))
        seen.append(newer.read(fence.folder_of(ROOT, 2) / fence.RECORD))

    world.start(body, "a")
    world.run()
    assert seen == [b"{}"]


def test_a_number_that_was_taken_and_removed_is_not_given_again(tmp_path: Path) -> None:
    """To one who has looked for the newest before: its holder's name would be in force once more."""
    renamed: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(lease_files, name)

        def rename(self, old: Path, new: Path) -> None:
            lease_files.rename(old, new)
            renamed.append(new.name)

    def taken(job: str) -> fence.Record:
        record, _ = fence.take(lease_files, tmp_path, lambda _: fence.Record(holder=job))
        fence.fence(lease_files, tmp_path, record)
        return record

    def slowly(newest: fence.Record | None) -> fence.Record:
        if newest is None:
            assert [taken(job).number for job in ("a", "b")] == [1, 2]
        return fence.Record(holder="c")

    record, before = fence.take(Watched(), tmp_path, slowly)
    assert (record.number, before and before.number) == (3, 2)
    assert [name for name in renamed if fence.NAME.fullmatch(name)] == ["00000003"]


class Timed(Meets):
    """Nothing happens, and the world's time at each call is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def __call__(self, call: int) -> float | None:
        self.times.append(HERE.process.world.time)
        return super().__call__(call)


def overtaken(seed: int, **server: Any) -> list[Trial]:
    """A job that is suspended for half a minute before one of its last calls, and another that comes just then."""

    def begun() -> Trial:
        return Trial(Ours, World(random.Random(seed), 0.0), Server(**server))

    calm, trials = begun(), []
    calm.start("a", meets=(timed := Timed()))
    calm.world.run()
    for at in range(len(timed.times) - 12, len(timed.times)):
        trials.append(trial := begun())
        trial.start("a", meets=Meets(at, 30.0))
        trial.start("b", timed.times[at - 1] + 1.0)
        trial.start("a", 400.0)
        trial.world.run()
    return trials


@pytest.mark.parametrize("schedules", [90, pytest.param(10_000, marks=pytest.mark.soak)])
def test_storage_that_does_not_fence_is_told_by_the_writers_names(schedules: int, tell: Tell) -> None:
    trials = [random_trial(Ours, seed, fences=False) for seed in range(schedules)]
    trials += [trial for seed in range(schedules // 6) for trial in overtaken(seed, fences=False)]
    tell("numbered leases on storage where removed folders can be written", trials)
    assert any(trial.late for trial in trials), "this storage is not what the test is about"
    assert not any(trial.used_late for trial in trials)
