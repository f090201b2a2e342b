import io
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.unit.prepare.make_archives import DATA, SYNSETS, config, contents, imagenet, picture, pictures, write_zip
from trainyard.core.exits import UserError
from trainyard.prepare.archives.zip import Archive
from trainyard.prepare.build import build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.path import PathSource
from trainyard.shards.reader import open_split

FIRST = f"{DATA}/train/{SYNSETS[0]}/{SYNSETS[0]}_0.JPEG"


def small() -> dict[str, bytes]:
    return imagenet(train=9, val=6)


def refused(path: Path, out: Path, match: str) -> None:
    """The archive is refused with this message, and nothing looks finished."""
    with pytest.raises(UserError, match=match):
        build(config(path, out))
    assert not (out / "manifest.json").exists()
    assert list(out.rglob("*.tmp")) == []


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_an_archive_cut_short_is_named(tmp_path, part):
    whole = write_zip(tmp_path / "whole.zip", small()).read_bytes()
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole[: int(len(whole) * part)])
    refused(cut, tmp_path / "out", r"cut\.zip.*(cut short|not a zip)")


def test_an_archive_without_its_beginning_is_named(tmp_path):
    whole = write_zip(tmp_path / "whole.zip", small()).read_bytes()
    (tmp_path / "a.zip").write_bytes(whole[100:])
    refused(tmp_path / "a.zip", tmp_path / "out", "a part of it is missing")


def test_something_before_an_archive_is_named_with_a_remedy_that_works(tmp_path):
    whole = write_zip(tmp_path / "whole.zip", small()).read_bytes()
    (tmp_path / "a.zip").write_bytes(b"#!/bin/sh\nexec unzip $0\n" + whole)
    refused(tmp_path / "a.zip", tmp_path / "out", r"has 24 bytes before the zip archive begins.*`zip -A FILE`")
    if shutil.which("zip"):  # no package of this project's
        subprocess.run(["zip", "-A", tmp_path / "a.zip"], check=True, capture_output=True)
        build(config(tmp_path / "a.zip", tmp_path / "out"))


def test_a_flipped_byte_anywhere_is_named_or_harmless(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    build(config(path, tmp_path / "sound"))
    sound = contents(tmp_path / "sound", manifest=False)
    whole = path.read_bytes()
    chance = np.random.Generator(np.random.Philox(key=3))
    # Half of them in the directory, which is a small part of the bytes but where names and labels are
    directory = whole.index(b"PK\x01\x02")
    places = [*chance.integers(0, directory, 50), *chance.integers(directory, len(whole), 100)]
    named = 0
    for number, at in enumerate(map(int, places)):
        damaged = bytearray(whole)
        damaged[at] ^= int(chance.integers(1, 256))
        path.write_bytes(damaged)
        out = tmp_path / str(number)
        try:
            build(config(path, out))
        except UserError as error:
            words = str(error)
            named += 1
        else:
            words = ""
            assert contents(out, manifest=False) == sound, f"byte {at} was changed unnoticed"
        assert not words or ("a.zip" in words and not (out / "manifest.json").exists())
    assert named > 50


def test_a_damaged_picture_is_named_with_the_remedy(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    data = bytearray(path.read_bytes())
    data[data.index(picture(0)) + 100] ^= 1
    path.write_bytes(data)
    refused(path, tmp_path / "out", rf"{SYNSETS[0]}_0\.JPEG.*a\.zip.*CRC-32 is wrong.*get the archive again")
    build(config(path, tmp_path / "out", skip=[FIRST]))
    assert len(open_split(tmp_path / "out", "train")) == 8


@pytest.mark.parametrize(
    "name", ["../evil.JPEG", "/etc/evil.JPEG", f"{DATA}/train/../../../evil.JPEG", "..\\evil.JPEG"]
)
def test_unsafe_names_are_refused_and_nothing_is_written_outside(tmp_path, name):
    path = write_zip(tmp_path / "a.zip", {**small(), name: picture(1)})
    refused(path, tmp_path / "deep" / "out", "unsafe name")
    assert list(tmp_path.rglob("*evil*")) == []


def test_a_name_that_appears_twice_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(FIRST, picture(5))
    refused(path, tmp_path / "out", rf"{SYNSETS[0]}_0.JPEG appears twice")


def test_empty_and_undecodable_pictures_are_refused_unless_left_out(tmp_path):
    empty, text = f"{DATA}/train/{SYNSETS[1]}/empty.JPEG", f"{DATA}/train/{SYNSETS[1]}/text.JPEG"
    path = write_zip(tmp_path / "a.zip", {**small(), empty: b""})
    refused(path, tmp_path / "out", r"empty.JPEG.*is empty.*'skip'")
    path = write_zip(tmp_path / "b.zip", {**small(), text: b"no picture at all"})
    with pytest.raises(UserError, match=r"cannot be decoded.*text.JPEG.*'skip'"):
        build(config(path, tmp_path / "out", decode="all"))
    build(config(path, tmp_path / "out", decode="all", skip=[text]))
    with pytest.raises(UserError, match=r"'skip' names nothing.JPEG"):
        build(config(path, tmp_path / "other", skip=["nothing.JPEG"]))


def test_zip64_archives_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    path = write_zip(tmp_path / "a.zip", small())
    assert b"PK\x06\x07" in path.read_bytes()
    build(config(path, tmp_path / "out"))
    assert len(open_split(tmp_path / "out", "train")) == 9


def entries(archive: bytes) -> tuple[bytes, list[bytes]]:
    """What lies before a zip's directory, and the entries of that."""
    directory = archive.index(b"PK\x01\x02")
    found = archive[directory : archive.rindex(b"PK\x05\x06")].split(b"PK\x01\x02")[1:]
    return archive[:directory], [b"PK\x01\x02" + entry for entry in found]


def end(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, size, offset & 0xFFFFFFFF, 0)


def test_the_finders_zips_of_more_than_4_gib_are_read(tmp_path):
    """Their offsets lack the upper bits. The file here has a hole, of which nothing is read."""
    members = small()
    halves = [dict(list(members.items())[part]) for part in (slice(8), slice(8, None))]
    parts = [entries(write_zip(tmp_path / f"{at}.zip", half).read_bytes()) for at, half in enumerate(halves)]
    path, far = tmp_path / "a.zip", (1 << 32) + 10
    with path.open("wb") as file:
        file.write(parts[0][0])
        file.seek(far)
        file.write(parts[1][0])
        where = file.tell()
        file.write(b"".join(parts[0][1]))
        for entry in parts[1][1]:
            offset = int.from_bytes(entry[42:46], "little") + 10
            file.write(entry[:42] + offset.to_bytes(4, "little") + entry[46:])
        file.write(end(len(members), file.tell() - where, where))
    build(config(path, tmp_path / "out"))
    build(config(write_zip(tmp_path / "whole.zip", members), tmp_path / "whole"))
    for split in ("train", "val"):
        assert pictures(tmp_path / "out", split) == pictures(tmp_path / "whole", split)
    archive = Archive(PathSource(path, Traffic()))
    alone = list(archive.members())
    for member, again in zip(alone, archive.members(), strict=True):  # as a listing looks for slashes amid its pass
        assert (again, next(archive.members())) == (member, alone[0])


def test_the_finders_zips_of_more_than_65535_files_are_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/0.jpg", b"x")
    before, (entry,) = entries(path.read_bytes())
    directory = entry * 70_000
    (tmp_path / "b.zip").write_bytes(before + directory + end(70_000, len(directory), len(before)))
    assert sum(1 for _ in Archive(PathSource(tmp_path / "b.zip", Traffic())).members()) == 70_000
    (tmp_path / "b.zip").write_bytes(before + directory + end(69_999, len(directory), len(before)))
    with pytest.raises(UserError, match="holds 70,000 entries instead of 4,463"):
        list(Archive(PathSource(tmp_path / "b.zip", Traffic())).members())


def test_links_in_a_zip_are_refused_with_the_remedy(tmp_path):
    """A class that is a link to a folder would be one small file without an ending, and no image."""
    path = write_zip(tmp_path / "a.zip", small())
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("emu")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "../other/emu")
    refused(path, tmp_path / "out", r"emu in .*a\.zip is a link; pack it again .*without -y")


def test_zips_that_were_joined_are_named(tmp_path):
    parts = [write_zip(tmp_path / f"{at}.zip", small()).read_bytes() for at in range(2)]
    (tmp_path / "a.zip").write_bytes(b"".join(parts))
    refused(tmp_path / "a.zip", tmp_path / "out", r"bytes before .* of another zip, as after `cat`; unpack each of")


@pytest.mark.parametrize("size", range(4, 22))
def test_a_zips_end_that_is_cut_short_is_named(tmp_path, size):
    (tmp_path / "a.zip").write_bytes(b"PK\x05\x06".ljust(size, b"\0"))
    with pytest.raises(UserError, match=r"a\.zip .*is neither a zip nor a tar"):
        Archive(PathSource(tmp_path / "a.zip", Traffic()))


def test_streamed_archives_and_comments_are_read(tmp_path):
    class Stream(io.RawIOBase):
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.data += data
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"made by a test " + b"PK\x05\x06" * 8
        for name, content in small().items():
            archive.writestr(name, content)
    (tmp_path / "a.zip").write_bytes(stream.data)
    build(config(tmp_path / "a.zip", tmp_path / "out"))
    assert len(open_split(tmp_path / "out", "val")) == 6


def test_stored_or_deflated_gives_the_same_shards(tmp_path):
    for name, packed in (("stored", "nothing"), ("deflated", "JPEG")):
        build(config(write_zip(tmp_path / f"{name}.zip", small(), packed), tmp_path / name))
    assert contents(tmp_path / "stored", manifest=False) == contents(tmp_path / "deflated", manifest=False)


def test_encrypted_and_strangely_packed_members_are_named(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[at + 8] |= 1
    (tmp_path / "b.zip").write_bytes(data)
    refused(tmp_path / "b.zip", tmp_path / "out", "encrypted")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{DATA}/train/{SYNSETS[0]}/x.JPEG", picture(1), zipfile.ZIP_LZMA)
    refused(path, tmp_path / "out", r"x.JPEG.*method 14")


def test_a_bomb_stays_small(tmp_path):
    """A member that announces 1,000 bytes and unpacks to 128 MiB is detected without unpacking it."""
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in small().items():
            archive.writestr(name, content)
        archive.writestr(f"{DATA}/train/{SYNSETS[0]}/bomb.JPEG", bytes(1 << 27))
    data = bytearray(bomb.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    struct.pack_into("<L", data, at + 24, 1000)
    bomb.write_bytes(data)
    script = (
        "import re; from tests.unit.prepare.make_archives import config; from trainyard.prepare.build import build; "
        "from trainyard.core.exits import UserError\n"
        f"try: build(config({str(bomb)!r}, __import__('pathlib').Path({str(tmp_path / 'out')!r})))\n"
        "except UserError as error: print(error)\n"
        # the high-water mark of this program alone: getrusage's counts what the parent held before the exec
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    words, peak = done.stdout.strip().rsplit("\n", 1)
    assert "bomb.JPEG" in words
    assert int(peak) < 180


def test_a_member_that_announces_too_much_is_refused_before_it_is_read(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, data.index(FIRST.encode(), data.index(b"PK\x01\x02")) - 46 + 24, 65 << 20)
    path.write_bytes(data)
    refused(path, tmp_path / "out", r"_0.JPEG .* is larger than 64 MiB.*'skip'")


def test_odd_names_keep_their_classes(tmp_path):
    names = ['train/ä ö/\'quoted "x".jpg', "train/日本/line\nbreak.jpg", "val/ä ö/1.jpg", "val/日本/1.jpg"]
    path = write_zip(tmp_path / "a.zip", {f"top/{name}": picture(i) for i, name in enumerate(names)})
    build(config(path, tmp_path / "out", layout="imagefolder"))
    assert pictures(tmp_path / "out", "train") == {picture(0): "ä ö", picture(1): "日本"}
    # Without the flag that says UTF-8, names are in the code page of old
    data = path.read_bytes().replace("ä ö".encode(), b"\x84 \x94??")
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        parts = data.split(header)
        data = header.join([parts[0], *(p[: at - 4] + b"\0\0" + p[at - 2 :] for p in parts[1:])])
    path.write_bytes(data)
    build(config(path, tmp_path / "old", layout="imagefolder"))
    assert pictures(tmp_path / "old", "train")[picture(0)] == "ä ö??"


def test_members_that_overlap_are_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", small())
    data = bytearray(path.read_bytes())
    entries = [at for at in range(len(data)) if data[at : at + 4] == b"PK\x01\x02"]
    offset = struct.unpack_from("<L", data, entries[5] + 42)[0]
    struct.pack_into("<L", data, entries[6] + 42, offset + 40)
    path.write_bytes(data)
    refused(path, tmp_path / "out", "overlap|does not agree")


def test_the_directory_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("trainyard.prepare.archives.zip._PIECE", 97)
    source = PathSource(write_zip(tmp_path / "a.zip", small()), Traffic())
    assert [member.name for member in Archive(source).members()] == list(small())
