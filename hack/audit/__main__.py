"""Compare what the lock files name with databases of known vulnerabilities.

    python -m hack.audit [DATABASE...]    zips, folders or files in the format of osv.dev, by path or address

Without one: those of PyPI and Go, from osv.dev. Ends with 1 if something is affected that accepted.toml does not name,
with 2 if a database cannot be read or knows nothing of an ecosystem that the lock files are of.
"""

import sys
import tomllib
from pathlib import Path

from hack.audit import osv
from hack.audit.locks import packages
from hack.pins.__main__ import ROOT, tracked

DATABASES = [f"https://storage.googleapis.com/osv-vulnerabilities/{name}/all.zip" for name in ("PyPI", "Go")]
ACCEPTED = Path(__file__).with_name("accepted.toml")


def main(databases: list[str], root: Path = ROOT, accepted: Path = ACCEPTED) -> int:
    """Print what is affected; returns the exit code."""
    named = packages(root, tracked(root))
    records = []
    for database in databases or DATABASES:
        try:
            records += list(osv.read(database))
        except (OSError, ValueError) as error:
            print(f"audit: {database} cannot be read as a database of vulnerabilities: {error}", file=sys.stderr)
            return 2
    known = set().union(*(osv.ecosystems(record) for record in records))
    if missing := {one.ecosystem for one in named} - known:
        print(f"audit: the databases hold no record of {', '.join(sorted(missing))}", file=sys.stderr)
        return 2
    return tell(named, osv.find(named, records), len(records), tomllib.loads(accepted.read_text()))


def tell(named: list[osv.Package], found: list[osv.Finding], records: int, accepted: dict[str, str]) -> int:
    """Print the findings, those on record with their reason; returns 1 if one is not."""
    wrong = 0
    for one in found:
        reason = next((accepted[name] for name in sorted(one.names()) if name in accepted), "")
        wrong += not reason
        names = ", ".join([one.record["id"], *sorted(one.names() - {one.record["id"]})])
        remedy = f"fixed in {', '.join(one.fixed)}" if one.fixed else "no version fixes it"
        words = reason and f"; accepted: {reason}"
        print(f"{one.package.file}: {one.package.name} {one.package.version}: {names}; {remedy}{words}")
        if summary := one.record.get("summary", ""):
            print(f"    {summary}")
    for name in sorted(accepted.keys() - set().union(*(one.names() for one in found))):
        print(f"audit: accepted.toml names {name}, which affects nothing any more")
    print(f"audit: {len(named)} packages, {records} records: {len(found)} affect us, {wrong} of them not accepted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
