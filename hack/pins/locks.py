"""Lock files: each file that they name has a hash."""

import re
import tomllib
from collections.abc import Iterator

from hack.pins.problems import Problem

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==")
REQUIRE = re.compile(r"^(?:require\s+)?([\w.~-]+\.[\w.~-]+/\S+|[\w-]+\.[\w.-]+) (v\d\S*)(?: //.*)?$")
REPLACE = re.compile(r"^(?:replace\s+)?(\S+)(?: v\S+)? => (\S+) (v\S+)$")
OURS = {"editable", "virtual", "directory"}


def uv(text: str) -> Iterator[Problem]:
    """Yield the packages of a uv.lock that have no file, or a file without a hash. Raises tomllib.TOMLDecodeError."""
    for package in tomllib.loads(text).get("package", []):
        if OURS & package["source"].keys():
            continue
        name = f"{package['name']} {package['version']}"
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        lacking = [file["url"].rpartition("/")[2] for file in files if not SHA256.fullmatch(file.get("hash", ""))]
        if lacking or not files:
            line = text[: text.find(f'name = "{package["name"]}"\nversion = "{package["version"]}"')].count("\n") + 1
            yield Problem(line, f"{name} has no hash of {', '.join(lacking) or 'any file'}")


def requirements(text: str) -> Iterator[Problem]:
    """Yield the packages of a requirements file that are without a version or without a hash."""
    joined = text.replace("\\\n", "\\ ")
    number = 1
    for line in joined.split("\n"):
        words = line.split("#")[0].strip()
        if words and not words.startswith("-"):
            match = PINNED.match(words)
            if not match or not re.search(r"--hash=sha256:[0-9a-f]{64}", words):
                yield Problem(number, f"{match[1] if match else words} has no {'hash' if match else 'version'}")
        number += line.count("\\ ") + 1


def go(module: str, sums: str) -> Iterator[Problem]:
    """Yield the modules that a go.mod requires, or replaces them by, that have no hash in go.sum."""
    lines = [line.strip() for line in module.splitlines()]
    replaced = {match[1]: (match[2], match[3]) for line in lines if (match := REPLACE.match(line))}
    known = {tuple(line.split()[:2]) for line in sums.splitlines() if " h1:" in line}
    for number, line in enumerate(lines, 1):
        if match := REQUIRE.match(line):
            name, version = replaced.get(match[1], (match[1], match[2]))
            if (name, f"{version}/go.mod") not in known:
                yield Problem(number, f"{name} {version} has no hash in go.sum")
