"""Records in the format of osv.dev (https://ossf.github.io/osv-schema), and which versions they affect."""

import json
import re
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from hack.audit.versions import KEYS, Key

Record = dict[str, Any]
BEFORE_ALL = "0"  # of `introduced`: it sorts before every version
SECONDS = 60  # without an answer


class Package(NamedTuple):
    """A package that a lock file names."""

    ecosystem: str
    name: str
    version: str
    file: str


class Finding(NamedTuple):
    """A package that a record affects, and the versions that fix it."""

    package: Package
    record: Record
    fixed: list[str]

    def names(self) -> set[str]:
        """Return all names of the vulnerability."""
        return {self.record["id"], *self.record.get("aliases", [])}


def read(source: str) -> Iterator[Record]:
    """Yield the records of a zip as osv.dev has them, by path or address, of a folder, or of one file of JSON.

    Raises OSError, and ValueError for what is none of these.
    """
    if source.startswith(("https://", "http://")):
        with urllib.request.urlopen(source, timeout=SECONDS) as answer:
            yield from _zipped(BytesIO(answer.read()))
    elif Path(source).is_dir():
        yield from (json.loads(path.read_text()) for path in sorted(Path(source).rglob("*.json")))
    elif source.endswith(".json"):
        yield json.loads(Path(source).read_text())
    else:
        yield from _zipped(BytesIO(Path(source).read_bytes()))


def _zipped(file: BytesIO) -> Iterator[Record]:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise ValueError("it is no zip") from error
    yield from (json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json"))


def ecosystems(record: Record) -> set[str]:
    """Return the ecosystems that a record is about, without their releases (`Debian:12` is of `Debian`)."""
    return {one["package"]["ecosystem"].partition(":")[0] for one in record.get("affected", []) if "package" in one}


def find(packages: Iterable[Package], records: Iterable[Record]) -> list[Finding]:
    """Return what is affected, each vulnerability of a package once, whatever its names."""
    wanted: dict[tuple[str, str], list[Package]] = {}
    for package in packages:
        wanted.setdefault((package.ecosystem, canonical(package.ecosystem, package.name)), []).append(package)
    found: list[Finding] = []
    for record in records:
        if "withdrawn" in record:
            continue
        for affected in record.get("affected", []):
            about = affected.get("package", {"ecosystem": "", "name": ""})
            ecosystem = about["ecosystem"].partition(":")[0]
            for package in wanted.get((ecosystem, canonical(ecosystem, about["name"])), []):
                if affects(affected, package.version, KEYS[ecosystem]):
                    found.append(Finding(package, record, fixes(affected, package.version, KEYS[ecosystem])))
    return merged(found)


def canonical(ecosystem: str, name: str) -> str:
    """Return the name that all spellings of a package share."""
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "PyPI" else name


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Leave out findings of one package that share a name with one before: databases tell of the same thing."""
    kept: list[Finding] = []
    for one in sorted(found, key=lambda one: (one.package, one.record["id"])):
        same = [before for before in kept if before.package == one.package and before.names() & one.names()]
        if not same:
            kept.append(one)
        elif not same[0].fixed:
            kept[kept.index(same[0])] = same[0]._replace(fixed=one.fixed)
    return kept


def affects(affected: Record, version: str, key: Key) -> bool:
    """Whether one entry of `affected` has the version: listed, or in one of its ranges."""
    listed = affected.get("versions", [])
    if any(_same(version, other, key) for other in listed):
        return True
    try:
        return any(_within(one, version, key) for one in _ranges(affected))
    except ValueError:  # a range of versions that nobody can compare: then the list says it, or one must look
        return not listed


def fixes(affected: Record, version: str, key: Key) -> list[str]:
    """Return the first version of each range that fixes it, above this one."""
    events = {event["fixed"] for one in _ranges(affected) for event in one["events"] if "fixed" in event}
    try:
        return sorted((one for one in events if key(one) > key(version)), key=key)
    except ValueError:
        return sorted(events)


def _ranges(affected: Record) -> list[Record]:
    return [one for one in affected.get("ranges", []) if one["type"] in ("ECOSYSTEM", "SEMVER")]  # not commits


def _same(version: str, other: str, key: Key) -> bool:
    try:
        return bool(key(version) == key(other))
    except ValueError:
        return version == other


def _within(one: Record, version: str, key: Key) -> bool:
    """Follow the events of a range up to the version, as the format's specification has it."""

    def place(event: dict[str, str]) -> tuple[bool, Any]:
        ((_, value),) = event.items()
        return (False, 0) if value == BEFORE_ALL else (True, key(value))

    mine, vulnerable = (True, key(version)), False
    for event in sorted(one["events"], key=place):
        if "introduced" in event:
            vulnerable = vulnerable or mine >= place(event)
        elif mine > place(event) or (mine == place(event) and "last_affected" not in event):
            vulnerable = False  # fixed, limit, or last_affected
    return vulnerable
