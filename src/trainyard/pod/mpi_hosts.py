"""Checks of the MPI launcher before it starts ranks: the hosts, whether they answer, and known permanent failures."""

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainyard.core.exits import CURED_BY_RETRY, INPUTS, Exit, ExitError, UserError
from trainyard.core.files import peek_json, whole

PROBE_SECONDS = 2.0
SAY_EVERY = 5.0  # seconds between lines while waiting
LOOK = "look at the worker pods' events and logs"


def read_hostfile(path: Path) -> dict[str, int]:
    """Return the hosts and their slots, in the file's order."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        text = f"the hostfile {path} cannot be read ({error.strerror}): mpi-operator mounts it, or Kubeflow Trainer"
        raise UserError(text) from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"([\w.-]+)(?:\s+slots\s*=\s*(\d+)|:(\d+))?", text)
        if match is None:
            raise UserError(f"{path}, line {number}: expected `HOST slots=N`, not {text!r}")
        if match[1] in hosts:
            raise UserError(f"{path}, line {number}: {match[1]} is named twice")
        hosts[match[1]] = int(match[2] or match[3] or 1)
    if not hosts:
        raise UserError(f"the hostfile {path} names no host: does the job have workers?")
    return hosts


def write_hostfile(path: Path, hosts: Mapping[str, int]) -> None:
    """Write a hostfile that mpirun reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{host} slots={slots}\n" for host, slots in hosts.items()))


def count_wanted(hosts: Mapping[str, int], spares: int, path: Path) -> int:
    """Return on how many hosts the ranks start; raises UserError where no host is left beside the spare ones."""
    if not 0 <= spares < len(hosts):
        raise UserError(
            f"--spares is {spares}, and {path} names {len(hosts)} hosts: let it be 0, or less than the number of hosts"
        )
    if spares and len(set(hosts.values())) > 1:
        raise UserError(
            f"--spares is {spares}, and the hosts of {path} have different slots: a spare one needs as many"
        )
    return len(hosts) - spares


def check_slots(hosts: Mapping[str, int], np: int, path: Path) -> None:
    """Refuse to start more processes than there are slots."""
    slots = sum(hosts.values())
    if np < 1:
        raise UserError(f"--np is {np}; at least 1 process is needed")
    if np > slots:
        raise UserError(
            f"--np asks for {np} processes, but {path} has {slots} slots on {len(hosts)} hosts: "
            "make --np the number of nodes times the processes of each"
        )
    if np < slots:
        print(f"launch: {np} processes on {slots} slots; the others stay idle", flush=True)


def ssh_port(config: Path) -> int:
    """Return the port that the ssh configuration names."""
    match = re.search(r"(?mi)^\s*Port[\s=]+(\d+)", config.read_text()) if config.is_file() else None
    return int(match[1]) if match else 22


def probe(host: str, port: int) -> str:
    """Return the empty string if ssh answers there, else the reason why not."""
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as connection:
            connection.settimeout(PROBE_SECONDS)
            return "" if connection.recv(4) == b"SSH-" else "something else than ssh answers"
    except socket.gaierror:
        return "its name does not resolve (the pod is not ready)"
    except (TimeoutError, OSError) as error:
        return (error.strerror or "no answer").lower()


def silent(hosts: Sequence[str], port: int, ask: Callable[[str, int], str] = probe) -> dict[str, str]:
    """Return the hosts on which ssh does not answer, each with the reason."""
    with ThreadPoolExecutor(32) as pool:
        answers = zip(hosts, pool.map(ask, hosts, [port] * len(hosts)), strict=True)
        return {host: why for host, why in answers if why}


def wait_for_ssh(
    hosts: Sequence[str], port: int, seconds: float, wanted: int, ask: Callable[[str, int], str] = probe
) -> list[str]:
    """Return the first `wanted` hosts on which ssh answers, as soon as there are so many.

    Prints which do not answer, and raises ExitError after `seconds`.
    """
    start = time.monotonic()
    said = start
    missing = list(hosts)
    while True:
        found = silent(missing, port, ask)
        missing, now = list(found), time.monotonic()
        answer = [host for host in hosts if host not in found]
        if len(answer) >= wanted:
            return answer[:wanted]
        shown = "; ".join(f"{host}: {why}" for host, why in list(found.items())[:5])
        count = f"{len(missing)} of {len(hosts)} workers do not answer on port {port} ({shown})"
        if now - start > seconds:
            raise ExitError(f"after {seconds:.0f} s {count}: {LOOK}", Exit.HANG)
        if now - said >= SAY_EVERY:
            print(f"launch: waiting, {now - start:.0f} of {seconds:.0f} s: {count}", flush=True)
            said = now
        time.sleep(0.5)


def name_lost(hosts: Sequence[str], port: int) -> str:
    """Name the workers that do not answer any more; the empty string where all do."""
    lost = [f"{host} ({why})" for host, why in silent(hosts, port).items()]
    return f"{len(lost)} of {len(hosts)} workers do not answer any more ({', '.join(lost[:5])})" if lost else ""


def host_of(error: str, hosts: Mapping[str, int]) -> str:
    """Return the host of the rank that an error is of, where mpirun fills these slots in order; nothing if unknown."""
    match = re.match(r"rank (\d+): ", error)
    places = [host for host, slots in hosts.items() for _ in range(slots)]
    return places[int(match[1])] if match and int(match[1]) < len(places) else ""


@dataclass(frozen=True)
class Failure:
    """The record of a permanent failure (failed.json)."""

    code: int
    message: str
    job: str
    may_be_repaired: bool  # where it came of files, the ranks tell whether these are as they were


def known_failure(run_dir: Path) -> Failure | None:
    """Return the permanent failure recorded in the run directory, if there is one that can be read."""
    note = peek_json(run_dir / "failed.json")
    code = whole(note, "code")
    return Failure(code, str(note.get("message", "")), str(note.get("job") or ""), INPUTS in note) if code else None


def refuse_known_failure(run_dir: Path, job: str) -> None:
    """Raise ExitError at once if this same job failed permanently before."""
    known = known_failure(run_dir)
    if known is None or known.may_be_repaired or known.job != job:
        return
    if 0 < known.code < CURED_BY_RETRY and known.code != Exit.FAILED:
        raise ExitError(known.message, known.code)
