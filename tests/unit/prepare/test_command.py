import gzip
import json
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import jsonschema
import pytest

from tests.unit.prepare.make_archives import config, contents
from trainyard.core.exits import Exit, ExitError, InputError, UserError
from trainyard.prepare.build import build
from trainyard.prepare.command import _part, main, retry, settings
from trainyard.prepare.settings import parse
from trainyard.prepare.verify import repair, verify


def test_the_schema_accepts_what_is_accepted_and_refuses_typos(capsys):
    assert main(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    good = {"source": {"kind": "http", "url": "https://example.org/a.zip"}, "out": "/data/x", "shard_mb": 4}
    jsonschema.validate(good, schema)
    parse(good)
    for key, value in (("shard_md", 4), ("shard_mb", 0), ("layout", "other")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, key: value}, schema)
        with pytest.raises(UserError, match=key):
            parse({**good, key: value})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "http"}, "needs the key 'url'"),
        ({"kind": "ftp"}, "source.kind"),
        ({"kind": "path", "path": "/x", "url": "http://x/y"}, "takes 'path' only"),
        ({"kind": "http", "url": "https://user:word@host/a.zip"}, "no place for secrets"),
        ({"kind": "http", "url": "host/a.zip"}, "http:// or https://"),
        ({"kind": "objectstore", "url": "s3://b/train-*.tar"}, "names several archives"),
        ({"kind": "objectstore", "url": "s3://b/{a,b}.tar"}, "names several archives"),
        ({"kind": "http", "url": "https://h/a.tar https://h/b.tar"}, "names several archives"),
        ({"kind": "kaggle", "competition": "a/../b"}, "source.competition"),
    ],
)
def test_wrong_sources_are_named(source, words):
    with pytest.raises(UserError, match=words):
        parse({"source": source, "out": "/data/x"})


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("http", {"url": "https://h/a.zip"}),
        ("objectstore", {"url": "s3://b/a.tar", "anonymous": True}),
        ("kaggle", {"competition": "a"}),
        ("kaggle-dataset", {"dataset": "a/b"}),
        ("path", {"path": "/a.zip"}),
    ],
)
def test_the_kind_of_a_source_follows_from_its_address(kind, source):
    assert parse({"source": source, "out": "/data/x"}).source.kind == kind
    with pytest.raises(UserError, match=r"source: kind '.*' takes '.*' only, not '.*'; remove it"):
        parse({"source": {"path": "/b.zip", "url": "https://h/b.zip", **source}, "out": "/data/x"})


def test_settings_from_a_file_and_from_the_command_line(tmp_path):
    path = tmp_path / "prepare.yaml"
    path.write_text("source: {kind: path, path: /a.zip}\nout: /data/x\nseed: 3\n")
    found = settings(Namespace(config=path, overrides=["seed=4", "source.path=/b.zip", 'skip=["x"]']))
    assert (found.seed, found.source.path, found.skip) == (4, "/b.zip", ("x",))
    with pytest.raises(UserError, match="key=value"):
        settings(Namespace(config=path, overrides=["seed"]))
    with pytest.raises(UserError, match="cannot be read"):
        settings(Namespace(config=tmp_path / "none.json", overrides=[]))


def test_parts_come_from_an_indexed_job(monkeypatch):
    assert _part("") == (0, 1)
    assert _part("2/3") == (2, 3)
    monkeypatch.setenv("TRAINYARD_PREPARE_PARTS", "4")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert _part("") == (1, 4)
    for wrong in ("3/3", "x/3", "1", "1/"):
        with pytest.raises(UserError, match="I/N"):
            _part(wrong)


def test_the_command_ends_with_2_and_one_line_on_wrong_settings():
    line = [sys.executable, "-m", "trainyard", "prepare", "build", "--set", "out=/data/x"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: wrong settings of the preparation: source: Field required\n"


def test_verify_names_every_bad_shard_and_repair_makes_just_those(archive, prepared, tmp_path, capsys):
    out = tmp_path / "little"
    build(config(archive, out))
    verify(out)
    assert "100 to 100 for each of 3 classes" in capsys.readouterr().err
    for name, at in (("train/shard-00000.tar", 5000), ("val/shard-00000.index.npy", 300)):
        data = bytearray((out / name).read_bytes())
        data[at] ^= 1
        (out / name).write_bytes(data)
    with pytest.raises(UserError, match=r"2 files of .* are damaged, first train/shard-00000.tar"):
        verify(out)
    said = capsys.readouterr().err
    assert "shard-00000.tar does not have its SHA-256" in said
    assert "shard-00000.index.npy does not have" in said
    kept = (out / "train/shard-00001.tar").stat().st_mtime_ns
    repair(config(archive, out))
    assert contents(out) == contents(prepared)
    assert (out / "train/shard-00001.tar").stat().st_mtime_ns == kept


def test_repair_removes_nothing_that_others_read(archive, prepared, tmp_path, monkeypatch):
    out = tmp_path / "little"
    build(config(archive, out))
    data = bytearray((out / "train/shard-00000.tar").read_bytes())
    data[5000] ^= 1
    (out / "train/shard-00000.tar").write_bytes(data)
    unlink, removed = Path.unlink, []

    def recorded(path, missing_ok=False):
        removed.extend([path] * path.exists())
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", recorded)
    with (out / "train/shard-00000.tar").open("rb") as reader:
        repair(config(archive, out))
        assert reader.read() == data, "who has it open reads on"
    assert [path for path in removed if path.parent != out / ".prepare"] == []
    assert contents(out) == contents(prepared)


def test_repair_of_an_unfinished_folder_looks_at_shards_finished_before(archive, prepared, tmp_path):
    out = tmp_path / "little"
    build(config(archive, out))
    (out / "manifest.json").unlink()
    path = out / "train" / "shard-00000.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    repair(config(archive, out))
    assert contents(out) == contents(prepared)


def test_a_changed_file_of_classes_is_found_and_repaired(archive, prepared, tmp_path):
    out = tmp_path / "little"
    build(config(archive, out))
    (out / "classes.json").write_text((out / "classes.json").read_text().replace("thing 1", "thing 2"))
    with pytest.raises(UserError, match=r"classes.json"):
        verify(out)
    repair(config(archive, out))
    assert contents(out) == contents(prepared)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b'"train/thing 1/1.jpg"\n', mtime=0)], ids=["torn", "short"]
)
def test_a_changed_file_of_names_is_found_and_repaired(archive, prepared, tmp_path, content):
    out = tmp_path / "little"
    build(config(archive, out))
    (out / "members-train.jsonl.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"members-train.jsonl.gz"):
        verify(out)
    repair(config(archive, out))
    assert contents(out) == contents(prepared)


def test_missing_files_of_names_are_no_damage_and_made_by_a_repair(archive, prepared, tmp_path):
    out = tmp_path / "little"
    build(config(archive, out))
    (out / "members-val.jsonl.gz").unlink()
    verify(out)
    repair(config(archive, out))
    assert contents(out) == contents(prepared)


def test_a_sound_folder_of_0_1_0_is_repaired_without_its_source(archive, tmp_path):
    """Version 0.1.0 made no files of names, and no checksum of the manifest."""
    out, own = tmp_path / "little", tmp_path / "own.zip"
    shutil.copy(archive, own)
    build(config(own, out))
    for path in out.glob("members-*"):
        path.unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["checksum"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    own.unlink()
    before = contents(out)
    repair(config(own, out))
    assert contents(out) == before


def test_verify_of_no_folder(tmp_path):
    with pytest.raises(UserError, match="not prepared"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="is not a manifest"):
        verify(tmp_path)


def test_what_may_be_mended_meanwhile_is_tried_again_within_bounds(capsys):
    tries = []

    def mended_at_the_third():
        tries.append(1)
        if len(tries) < 3:
            raise InputError("no credentials")

    retry(mended_at_the_third, 5, first_pause=0.01)
    said = capsys.readouterr().err
    assert said.count("prepare: waiting: no credentials") == 2
    with pytest.raises(InputError, match="never"):
        retry(lambda: (_ for _ in ()).throw(InputError("never")), 0.1, first_pause=0.05)


@pytest.mark.parametrize("error", [UserError("layout"), ExitError("stopped", Exit.STOPPED)])
def test_nothing_else_is_tried_again(error):
    tries = []

    def work():
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        retry(work, 60, first_pause=0.01)
    assert len(tries) == 1


def test_an_archive_that_is_missing_or_broken_may_be_mended(tmp_path, archive):
    with pytest.raises(InputError, match="cannot be opened"):
        build(config(tmp_path / "none.zip", tmp_path / "out"))
    cut = tmp_path / "cut.zip"
    cut.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(InputError, match="cut short"):
        build(config(cut, tmp_path / "out"))
