import contextlib
import errno
import gzip
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile

import pytest

from tests import patience
from tests.fakes import files
from tests.unit.prepare.make_archives import (
    PATIENT,
    SYNSETS,
    config,
    contents,
    imagenet,
    picture,
    pictures,
    write_folder,
    write_tar,
    write_zip,
)
from trainyard.core.exits import ExitError, UserError
from trainyard.prepare import build as building
from trainyard.prepare.archives.stream import Reader, decompress, stream
from trainyard.prepare.archives.tar import open_tar
from trainyard.prepare.archives.tar_scan import scan
from trainyard.prepare.build import Options, build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.path import PathSource
from trainyard.prepare.verify import repair, verify

MEMBERS = imagenet(90, 30)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    root = tmp_path_factory.mktemp("expected")
    build(config(write_zip(root / "a.zip", MEMBERS), root / "out"))
    return pictures(root / "out", "train") | pictures(root / "out", "val")


def found(root):
    return pictures(root, "train") | pictures(root, "val")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_gives_what_a_zip_gives(tmp_path, expected, kind):
    # Longer than the 100 bytes that a tar's header has for a name
    deep = {f"{'x' * 60}/{'y' * 60}/{name}": content for name, content in MEMBERS.items()}
    path = write_tar(tmp_path / "a.tar", deep, kind=kind)
    build(config(path, tmp_path / "out", decode="all"))
    assert found(tmp_path / "out") == expected
    verify(tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_classes_in_names_too_long_for_a_header(tmp_path, kind):
    members = {
        f"{s}/{'x' * 50}{c}/{'y' * 60}.jpg": picture(c + 10 * (s == "val")) for s in ("train", "val") for c in (1, 2)
    }
    build(config(write_tar(tmp_path / "a.tar", members, kind=kind), tmp_path / "out", layout="imagefolder"))
    assert pictures(tmp_path / "out", "train") == {picture(c): f"{'x' * 50}{c}" for c in (1, 2)}


def test_a_tar_of_gnu_tar_itself(tmp_path):
    for i in range(3):
        for split in ("train", "val"):
            path = tmp_path / "data" / split / f"c{i}" / f"{i}.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(picture(i + 10 * (split == "val")))
    subprocess.run(["tar", "-C", tmp_path / "data", "-cf", tmp_path / "a.tar", "."], check=True)
    build(config(tmp_path / "a.tar", tmp_path / "out", layout="imagefolder"))
    assert found(tmp_path / "out") == {picture(i + 10 * v): f"c{i}" for i in range(3) for v in (0, 1)}


def test_a_gzipped_tar_is_unpacked_once_and_leaves_nothing(tmp_path, expected, monkeypatch):
    path = write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz")
    out, real = tmp_path / "out", building.Crew

    def fail(*arguments):
        raise ExitError("enough", 1)

    monkeypatch.setattr(building, "Crew", fail)
    with pytest.raises(ExitError):
        build(config(path, out))
    unpacked = list((out / ".prepare").glob("unpacked-*.tar"))
    assert len(unpacked) == 1
    before = unpacked[0].stat().st_mtime_ns
    monkeypatch.setattr(building, "Crew", lambda *a: (seen.append(unpacked[0].stat().st_mtime_ns), real(*a))[1])
    seen = []
    build(config(path, out))
    assert seen == [before]
    assert found(out) == expected
    assert [p.name for p in (out / ".prepare").glob("*") if p.name.startswith(("unpacked", "listing-"))] == []
    # A damaged shard needs the archive again
    (out / "val/shard-00000.tar").write_bytes(b"")
    repair(config(path, out))
    assert found(out) == expected


def test_a_tar_over_http_is_read_by_several_connections_and_listed_once(tmp_path, expected):
    write_tar(tmp_path / "a.tar", MEMBERS)
    with files.running(tmp_path) as server:
        server.fault = lambda number, handler: number % 5 == 0 and handler.reset()
        build(config(f"{server.url}/a.tar", tmp_path / "out"), Options(patience=PATIENT))
    assert found(tmp_path / "out") == expected


def test_listing_a_tar_or_a_folder_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainyard.prepare.progress.EVERY", 0.0)
    build(config(write_tar(tmp_path / "a.tar", MEMBERS), tmp_path / "out"))
    assert re.search(r"listing .*a\.tar: \d+% · 12\d files · .* MB/s · about \d+ s left", capsys.readouterr().err)
    build(config(write_folder(tmp_path / "folder", MEMBERS), tmp_path / "other"))
    assert re.search(r"listing .*folder: 12\d files in \d+ folders", capsys.readouterr().err)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_dead_at_each_step_of_the_first_pass_the_same_command_ends_with_the_same_bytes(tmp_path, mode):
    """A child process dies at its n-th sync or rename, for the first of them: those of the listing and what follows."""
    path = write_tar(tmp_path / "a.tar", MEMBERS, mode)
    build(config(path, tmp_path / "whole" / "little"))
    for step in range(1, 9):
        out = tmp_path / str(step) / "little"
        child = os.fork()
        if child == 0:
            calls = []
            for name in ("fsync", "replace"):
                real = getattr(os, name)

                def dying(*arguments, real=real, calls=calls, step=step):
                    calls.append(arguments)
                    if len(calls) == step:
                        os._exit(9)
                    return real(*arguments)

                setattr(os, name, dying)
            with contextlib.redirect_stderr(io.StringIO()):
                build(config(path, out, workers=1))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        build(config(path, out))
        assert contents(out) == contents(tmp_path / "whole" / "little"), f"died at step {step}"
        assert list(out.rglob("*.tmp")) == []


def test_what_a_killed_first_pass_left_is_removed_before_the_next(tmp_path, monkeypatch):
    work = tmp_path / "out" / ".prepare"
    work.mkdir(parents=True)
    for name in ("unpacked-0123.tar.pod-7.tmp", "unpacked-4567.tar", "listing-0123.jsonl.pod-7.tmp"):
        (work / name).write_bytes(b"rubbish")
    real, seen = building.Crew, []
    monkeypatch.setattr(building, "Crew", lambda *a: (seen.extend(p.name for p in work.iterdir()), real(*a))[1])
    build(config(write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz"), tmp_path / "out"))
    assert len([name for name in seen if name.startswith(("unpacked-", "listing-"))]) == 2
    assert not [name for name in seen if "0123" in name or "4567" in name]


def test_an_unpacked_copy_that_was_damaged_is_made_again(tmp_path, monkeypatch):
    """A picture in it, and a text: the archive itself is sound."""
    path, out = write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz"), tmp_path / "little"
    build(config(path, out))
    wanted = contents(out)
    for damage in (picture(3), b"n01000000 thing"):
        shutil.rmtree(out)
        with monkeypatch.context() as patch:
            patch.setattr(building, "read_catalogue", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                build(config(path, out))
        (unpacked,) = (out / ".prepare").glob("unpacked-*")
        unpacked.write_bytes(unpacked.read_bytes().replace(damage, damage[::-1]))
        with pytest.raises(
            ExitError, match=r"damaged in the unpacked copy of .*a\.tgz.*run the same command"
        ) as caught:
            build(config(path, out))
        assert caught.value.code == 1
        build(config(path, out))
        assert contents(out) == wanted


def test_parts_share_a_gzipped_tar(tmp_path, expected):
    path = write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz")
    settings = config(path, tmp_path / "out")
    assert build(settings, Options(1, 2, wait_seconds=patience.IDLE, progress_seconds=0.05)) is None
    assert build(settings, Options(0, 2, wait_seconds=patience.IDLE, progress_seconds=0.05)) is not None
    assert found(tmp_path / "out") == expected


def refused(path, tmp_path, match):
    with pytest.raises(UserError, match=match):
        build(config(path, tmp_path / "out"))
    assert not (tmp_path / "out/manifest.json").exists()
    assert [p for p in tmp_path.rglob("*") if p.suffix == ".tmp" or "evil" in p.name] == []


@pytest.mark.parametrize(
    ("mode", "part"), [("w", 0.05), ("w", 0.5), ("w", 0.97), ("w:gz", 0.05), ("w:gz", 0.5), ("w:gz", 1.0)]
)
def test_a_tar_cut_short_is_named(tmp_path, part, mode, monkeypatch):
    monkeypatch.setattr("trainyard.prepare.archives.stream.PIECE", 1000)
    whole = write_tar(tmp_path / "whole", MEMBERS, mode).read_bytes()
    # Of the whole, gzip's own end of 8 bytes is cut in its middle
    (tmp_path / "a.tar").write_bytes(whole[: min(int(len(whole) * part), len(whole) - 4)])
    refused(tmp_path / "a.tar", tmp_path, r"a\.tar.*cut short.*several parts, join them \(`cat PART1")


def test_damage_in_a_gzipped_tar_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("trainyard.prepare.archives.stream.PIECE", 1000)
    whole = bytearray(write_tar(tmp_path / "whole", MEMBERS, "w:gz").read_bytes())
    for at in (len(whole) // 2, len(whole) - 6):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        (tmp_path / "a.tgz").write_bytes(damaged)
        refused(tmp_path / "a.tgz", tmp_path, r"a\.tgz.*(damaged|cut short|sound)")


@pytest.mark.parametrize(("name", "words"), [
    ("zip", "is a zip; unpack it, and give that"), ("tgz", "is packed by gzip once more; unpack it"),
    ("html", "is an HTML page, not the archive; open the address"), ("7z", "is a 7z archive; unpack it"),
])  # fmt: skip
def test_a_packing_without_a_tar_is_named_for_what_it_holds(tmp_path, name, words):
    held = {
        "zip": write_zip(tmp_path / "held.zip", MEMBERS).read_bytes(),
        "tgz": write_tar(tmp_path / "held.tgz", MEMBERS, "w:gz").read_bytes(),
        "html": b"<!DOCTYPE html><html>" + b" " * 600,
        "7z": b"7z\xbc\xaf\x27\x1c" + bytes(600),
    }
    (tmp_path / "a.gz").write_bytes(gzip.compress(held[name]))
    refused(tmp_path / "a.gz", tmp_path, rf"a\.gz is packed, and what it holds {words}")


def test_damage_in_a_tars_header_is_named(tmp_path):
    whole = bytearray(write_tar(tmp_path / "a.tar", MEMBERS, kind=tarfile.USTAR_FORMAT).read_bytes())
    second = 512 + -(-len(next(iter(MEMBERS.values()))) // 512) * 512
    whole[second + 3] ^= 1
    (tmp_path / "a.tar").write_bytes(whole)
    refused(tmp_path / "a.tar", tmp_path, rf"header at byte {second:,} is damaged")


@pytest.mark.parametrize("name", ["../evil.JPEG", "/etc/evil.JPEG", "a/../../evil.JPEG"])
def test_unsafe_names_are_refused(tmp_path, name):
    refused(write_tar(tmp_path / "a.tar", {**MEMBERS, name: b"x"}), tmp_path, "unsafe name")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_refused_with_the_remedy(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("train/a/1.jpg")
        link.type, link.linkname = kind, "/etc/passwd"
        archive.addfile(link)
    refused(tmp_path / "a.tar", tmp_path, r"1\.jpg.*is a link.*--dereference --hard-dereference")


def test_a_name_that_appears_twice_is_refused(tmp_path):
    name = f"ILSVRC/Data/CLS-LOC/train/{SYNSETS[0]}/{SYNSETS[0]}_0.JPEG"
    write_tar(tmp_path / "a.tar", MEMBERS)
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        info = tarfile.TarInfo(name)
        info.size = 4
        archive.addfile(info, io.BytesIO(b"data"))
    refused(tmp_path / "a.tar", tmp_path, r"appears twice")


def test_a_bomb_is_bounded(tmp_path):
    info = tarfile.TarInfo("train/a/1.jpg")
    info.size = 1 << 40
    with gzip.open(tmp_path / "a.tgz", "wb", compresslevel=1) as file:
        file.write(info.tobuf())
        for _ in range(200):
            file.write(bytes(1 << 20))
    refused(tmp_path / "a.tgz", tmp_path, r"unpacks to more than 100 times its")
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) < 1 << 20


def test_too_little_space_to_unpack_is_said_before_anything_is_read(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    refused(path, tmp_path, r"GB free, and .*a.tgz takes at least .* GB when it is unpacked.*plain tar or a zip")


def test_odd_names_in_a_tar(tmp_path):
    names = ['train/ä ö/\'quoted "x".jpg', "train/日本/line\nbreak.jpg", "val/ä ö/1.jpg", "val/日本/1.jpg"]
    write_tar(tmp_path / "a.tar", {name: picture(i) for i, name in enumerate(names)})
    build(config(tmp_path / "a.tar", tmp_path / "out", layout="imagefolder"))
    assert pictures(tmp_path / "out", "train") == {picture(0): "ä ö", picture(1): "日本"}


def test_damage_in_an_extension_header_is_named_and_nothing_is_lost_in_silence(tmp_path):
    """A reader that took it for the tar's end would leave out all that follows."""
    long = {f"{'x' * 120}/{name}": content for name, content in MEMBERS.items()}
    whole = bytearray(write_tar(tmp_path / "a.tar", long, kind=tarfile.PAX_FORMAT).read_bytes())
    second = whole.index(b" path=", whole.index(b" path=") + 1)
    start = second - second % 512
    whole[start : start + 3] = b"xyz"  # the length of the record
    (tmp_path / "a.tar").write_bytes(whole)
    refused(tmp_path / "a.tar", tmp_path, r"a\.tar is not a sound tar: byte [\d,]+ holds no header")


def test_an_extension_header_that_claims_to_be_huge_is_not_read(tmp_path):
    info = tarfile.TarInfo("PaxHeader/x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    first = write_tar(tmp_path / "a.tar", MEMBERS).read_bytes()
    (tmp_path / "a.tar").write_bytes(
        first[: first.rindex(b"ustar") - 257] + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)
    )
    refused(tmp_path / "a.tar", tmp_path, r"is not a sound tar: the header at byte [\d,]+ is too long")


def test_a_sparse_file_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "data" / "train" / "a" / "1.jpg"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for kind in ("gnu", "pax"):
        subprocess.run(["tar", "-C", tmp_path / "data", f"--format={kind}", "--sparse", "-cf", tmp_path / "a.tar", "."],
                       check=True)  # fmt: skip
        refused(tmp_path / "a.tar", tmp_path, r"1\.jpg in .*type 'S'.*without --sparse")


def record(text):
    """A record of an extension header: its own length, and the text."""
    length = next(n for n in range(100) if n == len(f"{n} ") + len(text) + 1)
    return f"{length} ".encode() + text + b"\n"


@pytest.mark.parametrize("text", [b"GNU.sparse.size=9", b"GNU.sparse.map=0,5,8,1", b"GNU.sparse.major=1"])
def test_a_sparse_file_of_any_version_of_pax_is_refused(text):
    extension = header(b"%011o" % len(record(text)), b"x") + record(text).ljust(512, b"\0")
    with pytest.raises(UserError, match=r"train/a/1\.jpg in a\.tar is of tar's type 'S'"):
        listed(extension + header(b"00000000005") + b"12345".ljust(512, b"\0") + bytes(1024))


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tgz", "w:gz")])
def test_tars_that_were_joined_are_read_to_the_end(tmp_path, expected, ending, mode):
    """As `cat 1.tar 2.tar` makes one; tar itself stops at the end of the first without a word."""
    names = sorted(MEMBERS)
    halves = ({name: MEMBERS[name] for name in part} for part in (names[:50], names[50:]))
    parts = [write_tar(tmp_path / f"{at}{ending}", half, mode).read_bytes() for at, half in enumerate(halves)]
    (tmp_path / f"a{ending}").write_bytes(b"".join(parts))
    build(config(tmp_path / f"a{ending}", tmp_path / "out"))
    assert found(tmp_path / "out") == expected


def test_zeros_in_place_of_the_rest_of_a_tar_are_named():
    file = header(b"00000000005") + b"12345".ljust(512, b"\0")
    assert len(listed(file + bytes(1 << 20))) == 1
    for rest in (b"", file + bytes(1024)):  # a download by several connections has a part of what follows
        with pytest.raises(UserError, match=r"a\.tar has more than 1,048,576 zeros from byte 1,024 on, .*broken off"):
            listed(file + bytes((1 << 20) + 512) + rest)
    with pytest.raises(UserError, match=r"its header at byte 1,536 is damaged; .* pack it again if `tar -tf` lists"):
        listed(file + bytes(512) + file[512:] + file + bytes(1024))
    with pytest.raises(UserError, match=r"is cut short: it ends at byte 2,560 without a tar's end"):
        listed(file + bytes(1024) + file[:512])


def header(size, kind=b"0"):
    """A tar's header with this field for its size, and a right checksum."""
    block = bytearray(tarfile.TarInfo("train/a/1.jpg").tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157], block[148:156] = size.ljust(12, b"\0"), kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def listed(tar):
    """The members of a tar; a scan that never ends fails by its processor time."""

    def late(*_):
        raise AssertionError("60 s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 60)
    try:
        return list(scan(Reader(iter([memoryview(tar)])), "a.tar"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("kind", [b"0", b"5", b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize(
    "size", [b"-0000000005", b"+0000000005", b"0_000000005", b"0o000000005", b"\xff" * 12, b"\xff" + bytes(11),
             b"\x80" + b"\xff" * 11, b"8", b"\xb2"], ids=str)  # fmt: skip
def test_a_size_that_is_no_number_from_0_on_is_refused(size, kind):
    with pytest.raises(UserError, match=r"a\.tar is not a sound tar: byte 0 holds no header"):
        listed(header(size, kind) + bytes(4096))


@pytest.mark.parametrize(
    "record", [b"11 size=-5\n", b"11 size=+5\n", b"12 size=1_0\n", b"9 size=5\n ", b"30 size=" + b"9" * 21 + b"\n",
               b"-9 size=5\n", b"+9 size=5\n", b"99 path=a\n", b"8 path=a\n", b"10 path=aa\n", b"0 path=a\n",
               b"9 path:a\n", b"\xb2 path=a\n", b" 9 path=a\n"], ids=str)  # fmt: skip
def test_a_record_of_an_extension_header_is_as_long_as_it_says_and_holds_a_number(record):
    extension = header(b"%011o" % len(record), b"x") + record.ljust(512, b"\0")
    with pytest.raises(UserError, match=r"a\.tar is not a sound tar: byte [\d,]+ holds no header"):
        listed(extension + header(b"00000000005") + b"12345".ljust(512, b"\0") + bytes(1024))


def test_numbers_that_a_tar_may_have():
    for size in (b"00000000005", b"5", b"    5 ", b"\x80" + bytes(10) + b"\x05"):
        (member,) = listed(header(size) + b"12345".ljust(512, b"\0") + bytes(1024))
        assert member.size == 5
    record = b"9 size=5\n12 path=a=b\n"
    extension = header(b"%011o" % len(record), b"x") + record.ljust(512, b"\0")
    (member,) = listed(extension + header(b"7") + b"12345".ljust(512, b"\0") + bytes(1024))
    assert (member.size, member.name) == (5, "a=b")


def test_gzip_of_very_many_members_is_unpacked(tmp_path):
    whole = write_tar(tmp_path / "whole", MEMBERS).read_bytes()
    parts = [gzip.compress(whole[:1000]), gzip.compress(b"") * 20_000, gzip.compress(whole[1000:]), bytes(200_000)]
    (tmp_path / "a.tgz").write_bytes(b"".join(parts))
    source = PathSource(tmp_path / "a.tgz", Traffic())
    with stream(source) as chunks:
        assert b"".join(decompress(chunks, source)) == whole


def test_a_read_of_the_unpacked_tar_that_fails_is_done_again(tmp_path, monkeypatch):
    write_tar(tmp_path / "a.tgz", MEMBERS, "w:gz")
    tar = open_tar(PathSource(tmp_path / "a.tgz", Traffic()), tmp_path / "work", Traffic(), "gzip")
    real, faults = os.preadv, [errno.EIO, errno.ESTALE]

    def preadv(*arguments):
        if faults:
            raise OSError(faults.pop(), "failed")
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    found = {member.name: bytes(tar.source.read_range(member.offset, member.size)) for member in tar.members()}
    assert (found, faults) == (MEMBERS, [])
    assert tar.source.label == str(tmp_path / "a.tgz")
