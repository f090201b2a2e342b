"""Files on storage that fails for a while."""

import errno
import json
import os
from pathlib import Path

import pytest
from faulty_storage import failing

from trainyard.core import files
from trainyard.core.exits import UserError
from trainyard.core.files import peek_json
from trainyard.core.storage import Appender, StorageError, storage


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_rename_whose_answer_was_lost_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A network client repeats it, and finds nothing to rename; what another has put there is not taken for it."""
    once = Path.rename
    monkeypatch.setattr(Path, "rename", lambda old, new: (once(old, new), once(old, new)))
    old, new = tmp_path / "old", tmp_path / "new"
    make = {"file": Path.touch, "folder": Path.mkdir, "link": lambda path: path.symlink_to("nothing")}[kind]
    make(old)
    files.rename(old, new)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    make(old)
    monkeypatch.setattr(Path, "rename", lambda old, new: once(old.with_name("gone"), new))
    with pytest.raises(FileNotFoundError):
        files.rename(old, new)


def test_trouble_is_said_once_and_its_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "note.json"
    storage.write_json(path, {"a": 1})
    faults = failing(monkeypatch, "note.json")
    faults += [errno.EIO, errno.ESTALE, errno.EAGAIN]
    assert storage.read_json(path) == {"a": 1}
    assert faults == []
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"storage: {path}: Input/output error; retried for up to 120 s"
    assert last.startswith("storage: no file is waited for any more, after ")


def test_what_is_missing_is_missing_at_once_and_what_is_forbidden_at_the_third_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "note.json", []  # type: ignore[var-annotated]
    faults = failing(monkeypatch, "note.json", calls)
    assert storage.read_json(path) == {}
    assert len(calls) == 1
    path.write_text("{}")
    faults += [errno.EACCES] * 2
    assert storage.read_json(path) == {}
    faults += [errno.EACCES] * 9
    with pytest.raises(UserError, match=r"note.json cannot be read \(Permission denied\); check the claim"):
        storage.read_json(path)
    assert len(faults) == 6
    assert peek_json(path) == {}  # once, without a word
    assert len(faults) == 5


def test_a_listed_file_is_missing_at_the_third_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shard"
    path.write_text("x")
    faults = failing(monkeypatch, "shard")
    faults += [errno.ENOENT, errno.ENOENT]
    assert storage.read_bytes(path, listed=True).decode() == "x"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(path, listed=True)


def test_waiting_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0")
    (tmp_path / "a").write_text("x")
    faults = failing(monkeypatch, str(tmp_path / "a"))
    faults += [errno.ESTALE]
    assert storage.perform("a", (tmp_path / "a").read_text) == "x"  # once at least
    faults += [errno.ESTALE] * 9
    with pytest.raises(StorageError, match=r"a: Stale file handle \(ESTALE\)"):
        storage.perform("a", (tmp_path / "a").read_text)
    assert len(faults) == 7


def test_a_full_volume_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = failing(monkeypatch, "note.json")
    faults += [errno.ENOSPC] * 2
    with pytest.raises(OSError, match="No space left"):
        storage.write_json(tmp_path / "note.json", {})
    assert len(faults) == 1


def test_whole_files_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = failing(monkeypatch, str(tmp_path))
    faults += [errno.EIO] * 4
    storage.write_json(tmp_path / "note.json", {"a": 1})
    assert faults == []
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]


class Torn:
    """An open file whose next writes put so many bytes down and then fail."""

    def __init__(self, file, *counts: int, number: int = errno.ESTALE) -> None:  # type: ignore[no-untyped-def]
        self.file, self.counts, self.number = file, list(counts), number

    def write(self, data: bytes) -> int:
        self.file.write(data[: self.counts.pop(0)])
        raise OSError(self.number, os.strerror(self.number))

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("count", [0, 4, 100])
def test_a_line_that_was_torn_is_written_once(tmp_path: Path, count: int) -> None:
    """Nothing of it was written, a part, or all of it though the call failed."""
    path = tmp_path / "metrics.jsonl"
    lines = Appender(path)
    lines.write('{"step": 1}\n')
    lines._file = Torn(lines._file, count)  # type: ignore[assignment]
    lines.write('{"step": 2}\n')
    lines.write('{"step": 3}\n')
    lines.close()
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["step"] for line in whole] == [1, 2, 3]


def test_nothing_is_appended_to_a_file_that_was_opened_too_late(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    Appender(path, lambda: False).write('{"step": 9}\n')
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_nothing_is_appended_to_a_file_that_is_anothers(tmp_path: Path, number: int) -> None:
    """A newer job has replaced it: on network storage an open file that was removed fails, and its name is not ours."""
    path = tmp_path / "metrics.jsonl"
    ours = [True]
    lines = Appender(path, lambda: ours[0])
    lines._file = Torn(lines._file, 0, number=number)  # type: ignore[assignment]
    ours[0] = False
    path.write_text('{"step": 1}\n')
    lines.write('{"step": 9}\n')
    assert path.read_text() == '{"step": 1}\n'

    ours[:] = [True, True, False]  # it is found out while storage fails
    lines = Appender(path, lambda: ours.pop(0))
    lines._file = Torn(lines._file, 0)  # type: ignore[assignment]
    lines.write('{"step": 9}\n')
    lines.write('{"step": 10}\n')
    assert path.read_text() == '{"step": 1}\n'


def test_reading_shows_entries_and_none_without_a_folder(tmp_path: Path) -> None:
    assert storage.list_folder(tmp_path / "none") == []
    (tmp_path / "a").write_text("")
    assert storage.list_folder(tmp_path) == [tmp_path / "a"]
