"""The audit: versions in order, records of the OSV format, lock files, and the program on a small database."""

import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hack.audit import __main__ as audit
from hack.audit import locks, osv
from hack.audit.versions import pypi, semver
from hack.pins.__main__ import tracked
from tests.fakes import files

ROOT = Path(__file__).resolve().parents[1]


def record(name: str, *, ecosystem: str = "PyPI", **affected: Any) -> osv.Record:
    return {
        "schema_version": "1.7.0", "id": "TEST-1", "modified": "2026-01-01T00:00:00Z", "summary": "It breaks.",
        "affected": [{"package": {"ecosystem": ecosystem, "name": name}, **affected}],
    }  # fmt: skip


def between(*events: dict[str, str], kind: str = "ECOSYSTEM") -> list[dict[str, Any]]:
    return [{"type": kind, "events": list(events)}]


# ------------------------------------------------------------------------------------------------ versions


def test_semantic_versions_are_in_the_order_of_their_specification() -> None:
    ordered = [
        "v0.0.0-20200101000000-abcdefabcdef",
        "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
        "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "v1.2.0", "1.10.0", "v2.0.0+incompatible", "v2.0.1",
    ]  # fmt: skip
    assert all(semver(before) < semver(after) for before, after in pairwise(ordered))
    assert semver("v1.2.3+a") == semver("1.2.3")
    with pytest.raises(ValueError, match="'one' is no semantic version"):
        semver("one")


def test_versions_of_python_packages_are_in_the_order_of_pep_440() -> None:
    ordered = ["1.0.dev1", "1.0a1", "1.0rc1", "1.0", "1.0.post1", "1.2", "1.10", "1!0.1"]
    assert all(pypi(before) < pypi(after) for before, after in pairwise(ordered))
    assert pypi("1.0") == pypi("1.0.0")


# ------------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize(
    ("version", "events", "affected"),
    [
        ("1.0", [{"introduced": "0"}], True),
        ("0.9", [{"introduced": "1.0"}], False),
        ("1.9", [{"introduced": "0"}, {"fixed": "1.10"}], True),
        ("1.10", [{"introduced": "0"}, {"fixed": "1.10"}], False),
        ("2.5", [{"fixed": "1.1"}, {"introduced": "2.0"}, {"introduced": "0"}, {"fixed": "3.0"}], True),
        ("1.5", [{"introduced": "0"}, {"fixed": "1.1"}, {"introduced": "2.0"}, {"fixed": "3.0"}], False),
        ("1.5", [{"fixed": "1.1"}, {"introduced": "0"}], False),
        ("1.5", [{"introduced": "0"}, {"last_affected": "1.5"}], True),
        ("1.5.1", [{"introduced": "0"}, {"last_affected": "1.5"}], False),
        ("1.5", [{"introduced": "0"}, {"limit": "1.5"}], False),
    ],
)
@pytest.mark.parametrize(("ecosystem", "kind"), [("PyPI", "ECOSYSTEM"), ("Go", "SEMVER")])
def test_ranges(version: str, events: list[dict[str, str]], affected: bool, ecosystem: str, kind: str) -> None:
    one = osv.Package(ecosystem, "a", version, "x.lock")
    assert bool(osv.find([one], [record("a", ecosystem=ecosystem, ranges=between(*events, kind=kind))])) == affected


def test_versions_that_are_listed_are_affected_in_any_spelling() -> None:
    one = osv.Package("PyPI", "Some_Name", "1.0.0", "x")
    assert osv.find([one], [record("some.name", versions=["0.9", "1.0"])])
    assert not osv.find([one], [record("some.name", versions=["0.9", "not a version"])])
    assert not osv.find([one], [record("other", versions=["1.0"])])
    assert not osv.find([one], [record("some-name", ecosystem="npm", versions=["1.0.0"])])


def test_ranges_that_cannot_be_compared_are_shown_unless_a_list_tells() -> None:
    one, strange = osv.Package("PyPI", "a", "1.0", "x"), between({"introduced": "0"}, {"fixed": "the next"})
    assert [found.fixed for found in osv.find([one], [record("a", ranges=strange)])] == [["the next"]]
    assert not osv.find([one], [record("a", ranges=strange, versions=["0.9"])])


def test_commits_and_withdrawn_records_are_no_findings() -> None:
    one = osv.Package("PyPI", "a", "1.0", "x")
    assert not osv.find([one], [record("a", ranges=between({"introduced": "0"}, kind="GIT"))])
    assert not osv.find([one], [record("a", versions=["1.0"]) | {"withdrawn": "2026-02-01T00:00:00Z"}])


def test_what_two_databases_tell_is_told_once_with_its_remedy() -> None:
    one = osv.Package("PyPI", "a", "1.0", "x")
    listed = record("a", versions=["1.0"]) | {"id": "GHSA-x", "aliases": ["CVE-1"]}
    ranges = between({"introduced": "0"}, {"fixed": "0.9"}, {"introduced": "1.0"}, {"fixed": "1.2"})
    ranged = record("a", ranges=ranges) | {"id": "PYSEC-1", "aliases": ["CVE-1"]}
    (found,) = osv.find([one], [listed, ranged, record("a", versions=["2.0"])])
    assert (found.record["id"], found.fixed) == ("GHSA-x", ["1.2"])


# ------------------------------------------------------------------------------------------------ lock files


def test_lock_files_name_every_package_of_the_project() -> None:
    found = {one[:3]: one.file for one in locks.packages(ROOT, tracked(ROOT))}
    assert found["PyPI", "horovod", "0.28.1"] == "images/horovod/source.txt"
    assert {"uv.lock", "images/requirements.txt", "images/base/requirements.txt"} <= {
        file for (_, name, _), files in found.items() if name in ("torch", "timm") for file in files.split(", ")
    }
    go = {name for ecosystem, name, _ in found if ecosystem == "Go"}
    assert {"stdlib", "helm.sh/helm/v3", "github.com/external-secrets/external-secrets"} <= go
    assert "github.com/helm-unittest/yaml-jsonpath" in go  # in place of another
    assert "github.com/vmware-labs/yaml-jsonpath" not in go
    assert "trainyard-kubernetes" not in {name for _, name, _ in found}
    for ecosystem, name, version in found:
        assert osv.KEYS[ecosystem](version), name


# ------------------------------------------------------------------------------------------------ the program


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a checkout that locks a package of each ecosystem."""
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "uv.lock").write_text('[[package]]\nname = "lib"\nversion = "1.4"\nsource = { registry = "x" }\n')
    (tree / "go.mod").write_text("module own.invalid/x\nrequire example.com/mod v1.4.0 // indirect\n")
    return tree


def database(path: Path, *records: osv.Record) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for number, one in enumerate(records):
            archive.writestr(f"{number}.json", json.dumps(one))
    return str(path)


PYTHON = record("lib", ranges=between({"introduced": "0"}, {"fixed": "1.5"})) | {"id": "PYSEC-7", "aliases": ["CVE-7"]}
GO = record("example.com/mod", ecosystem="Go", ranges=between({"introduced": "2.0.0"}, kind="SEMVER"))


@pytest.fixture
def run(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(audit, "tracked", lambda root: ["uv.lock", "go.mod"])

    def run(*databases: str, accepted: str = "") -> tuple[int, str]:
        (tmp_path / "accepted.toml").write_text(accepted)
        code = audit.main(list(databases), tree, tmp_path / "accepted.toml")
        return code, "".join(capsys.readouterr())

    return run


def test_a_finding_names_file_version_and_remedy_and_fails(run: Any, tmp_path: Path) -> None:
    code, said = run(database(tmp_path / "python.zip", PYTHON), database(tmp_path / "go.zip", GO))
    assert code == 1
    assert "uv.lock: lib 1.4: PYSEC-7, CVE-7; fixed in 1.5\n    It breaks.\n" in said
    assert "2 packages, 2 records: 1 affect us, 1 of them not accepted" in said


def test_what_is_accepted_is_shown_with_its_reason_and_what_is_over_is_said(run: Any, tmp_path: Path) -> None:
    both = database(tmp_path / "both.zip", PYTHON, GO)
    code, said = run(both, accepted='CVE-7 = "not called"\nCVE-8 = "of old"\n')
    assert code == 0
    assert "fixed in 1.5; accepted: not called" in said
    assert "accepted.toml names CVE-8, which affects nothing any more" in said


def test_a_database_is_a_folder_too_or_comes_from_a_server(run: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "GO-1.json").write_text(json.dumps(GO))
    database(tmp_path / "all.zip", PYTHON)
    with files.running(tmp_path) as server:
        code, said = run(f"{server.url}/all.zip", str(tmp_path / "folder"))
    assert (code, "PYSEC-7" in said) == (1, True)


@pytest.mark.parametrize("kind", ["missing", "text", "other ecosystem"])
def test_nothing_is_called_clean_that_was_not_compared(run: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.zip"
    if kind == "text":
        path.write_text("<html>")
    if kind == "other ecosystem":
        database(path, PYTHON)
    code, said = run(str(path))
    assert code == 2
    assert ("hold no record of Go" if kind == "other ecosystem" else "cannot be read as a database") in said
