"""`source.sha256`: another archive than the one that was meant is refused before anything is made of it."""

import hashlib
from pathlib import Path

import pytest

from tests.fakes import files
from tests.unit.prepare.make_archives import HASTE, config, contents, imagenet, write_folder, write_tar
from trainyard.core.exits import UserError
from trainyard.prepare.build import Options, build
from trainyard.prepare.settings import Preparation, parse
from trainyard.shards import manifest as manifests

OTHER = "0" * 64


def with_digest(source: Path | str, out: Path, digest: str) -> Preparation:
    plain = config(source, out)
    return plain.model_copy(update={"source": plain.source.model_copy(update={"sha256": digest})})


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz"])
def test_the_right_archive_is_prepared_and_the_manifest_says_so(archive, prepared, tmp_path, mode):
    path = archive if mode == "zip" else write_tar(tmp_path / "a.tar", imagenet(30, 9), mode)
    out = tmp_path / prepared.name
    build(with_digest(path, out, digest_of(path)))
    assert manifests.load(out).source["sha256"] == digest_of(path)
    if mode == "zip":
        assert contents(out, manifest=False) == contents(prepared, manifest=False)


def test_another_archive_is_refused_before_anything_is_made(archive, tmp_path):
    with pytest.raises(UserError, match=rf"has the SHA-256 {digest_of(archive)}, and source.sha256 is {OTHER}"):
        build(with_digest(archive, tmp_path / "out", OTHER))
    assert not list(tmp_path.glob("out/train/*"))


def test_a_restart_does_not_read_it_again_unless_it_changed(archive, tmp_path, capsys):
    copy, out = tmp_path / "archive.zip", tmp_path / "out"
    copy.write_bytes(archive.read_bytes())
    with files.running(tmp_path) as server:
        wanted = with_digest(f"{server.url}/archive.zip", out, digest_of(copy))
        build(wanted, Options(patience=HASTE))
        assert "to compare its SHA-256" in capsys.readouterr().err
        (out / manifests.FILE).unlink()
        build(wanted, Options(patience=HASTE))
        assert "to compare its SHA-256" not in capsys.readouterr().err
        (out / manifests.FILE).unlink()
        damaged = bytearray(archive.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        copy.write_bytes(damaged)
        with pytest.raises(UserError, match="it is another archive or a damaged one"):
            build(wanted, Options(patience=HASTE))


def test_a_folder_has_none(tmp_path):
    folder = write_folder(tmp_path / "in", imagenet(9, 6))
    with pytest.raises(UserError, match=r"source.sha256 is that of an archive, and .* is a folder"):
        build(with_digest(folder, tmp_path / "out", OTHER))


def test_a_complete_folder_must_have_been_compared(archive, tmp_path):
    out, digest = tmp_path / "out", digest_of(archive)
    build(config(archive, out))
    with pytest.raises(UserError, match=rf"source.sha256 = '{digest}', and .* was prepared without comparing it"):
        build(with_digest(archive, out, digest))
    build(with_digest(archive, tmp_path / "compared", digest))
    assert build(with_digest(archive, tmp_path / "compared", digest))
    assert build(config(archive, tmp_path / "compared"))  # no wish, no refusal
    with pytest.raises(UserError, match=rf"was prepared from an archive with {digest}"):
        build(with_digest(archive, tmp_path / "compared", OTHER))


def test_only_64_hexadecimal_digits_are_taken():
    with pytest.raises(UserError, match=r"source\.sha256"):
        parse({"source": {"kind": "path", "path": "/a.zip", "sha256": "sha256:abc"}, "out": "/x"})
