import email.utils
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests import patience, ports
from tests.fakes import files, guarded
from tests.unit.prepare.make_archives import HASTE, PATIENT, config, contents, imagenet, write_zip
from trainyard.core.exits import ExitError, UserError
from trainyard.prepare.build import Options, build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.http import HttpSource
from trainyard.prepare.sources.retry import PassingError, Patience, Retries
from trainyard.shards import manifest as manifests

SECRET = "X-Signature=very-secret"


def attempt(server, out, how=HASTE, **settings):
    return build(config(f"{server.url}/archive.zip", out, **settings), Options(patience=how))


FAULTS = {
    "throttled": lambda handler: handler.refuse(429, Retry_After="0"),
    "unavailable": lambda handler: handler.refuse(503),
    "reset": lambda handler: handler.reset(),
    "cut short": lambda handler: handler.send_half(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_passing_faults_are_retried_and_the_bytes_are_the_same(server, prepared, tmp_path, capsys, fault):
    server.fault = lambda number, handler: number % 3 == 0 and FAULTS[fault](handler)
    attempt(server, tmp_path / "little", PATIENT)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    said = capsys.readouterr().err
    assert " 0 retries" not in said
    assert "retries" in said


def test_a_short_answer_is_continued_not_repeated(server, archive):
    source = HttpSource(f"{server.url}/archive.zip", Traffic(), patience=HASTE)
    server.requests.clear()
    server.fault = lambda number, handler: number == 1 and handler.send_half()
    assert bytes(source.read_range(0, 600_000)) == archive.read_bytes()[:600_000]
    first, second = (entry[1] for entry in server.requests)
    assert first == "bytes=0-599999"
    assert int(second.removeprefix("bytes=").split("-")[0]) > 0


def test_a_server_that_stays_broken_is_asked_a_bounded_number_of_times(server, tmp_path):
    server.fault = lambda number, handler: number > 3 and handler.refuse(503)
    with pytest.raises(ExitError, match=r"answered 503 .*4 times in a row.*same command again") as caught:
        attempt(server, tmp_path / "little", workers=2)
    assert caught.value.code == 1
    assert len(server.requests) <= 3 + 2 * HASTE.tries
    assert not manifests.exists(tmp_path / "little")


def test_no_server_at_all(tmp_path):
    url = f"http://127.0.0.1:{ports.free()}/archive.zip"
    with pytest.raises(ExitError, match=r"Connection refused"):
        build(config(url, tmp_path / "little"), Options(patience=HASTE))


def test_pauses_grow_and_heed_the_server_within_bounds():
    bounded = Patience(first_pause=1, longest_pause=8)
    for failures, longest in ((1, 1), (3, 4), (4, 8), (30, 8)):
        assert longest / 2 <= bounded.pause(failures, None) <= longest
    assert bounded.pause(1, "5") == 5
    assert bounded.pause(1, "86400") == 16
    assert bounded.pause(1, "Wed, 21 Oct 2020 07:28:00 GMT") <= 1
    begun = time.time()
    pause = bounded.pause(1, email.utils.formatdate(begun + 5, usegmt=True))  # which has no fractions
    assert 4 - (time.time() - begun) <= pause <= 5
    for nonsense in ("soon", "\xb2", "\xb9\xb3", "-5", "1e9", "Wed, 21 Oct 2026 07:28:00 +99999999999999", "9" * 5000):
        assert bounded.pause(1, nonsense) <= (16 if nonsense[0] == "9" else 1)


def test_answers_without_a_byte_are_failures_that_end():
    asked = []

    def ask(offset, length):
        asked.append(offset)
        yield b"" if len(asked) != 2 else b"x"
        if len(asked) % 3:
            raise PassingError("the answer was cut short")

    with pytest.raises(ExitError, match="4 times in a row"):
        Retries("archive", Traffic(), HASTE).fill(0, memoryview(bytearray(9)), ask)
    assert asked == [0, 0, 1, 1, 1]


def test_a_server_without_ranges_is_named_with_the_remedy(server, tmp_path):
    def forget_range(number, handler):
        del handler.headers["Range"]
        return False

    server.fault = forget_range
    with pytest.raises(UserError, match=r"does not answer range requests.*source.kind to 'path'"):
        attempt(server, tmp_path / "little")


@pytest.mark.parametrize(("status", "words"), [(404, "check the address"), (403, "signature"), (405, "server's log")])
def test_refusals_are_explained(server, tmp_path, status, words):
    server.fault = lambda number, handler: handler.refuse(status)
    with pytest.raises(UserError, match=rf"answered {status}.*{words}"):
        attempt(server, tmp_path / "little")


def test_an_object_that_changes_meanwhile_is_noticed(tmp_path):
    path = write_zip(tmp_path / "archive.zip", imagenet(30, 9))

    def touch(number, handler):
        if number == 5:
            os.utime(path, (1, 1))
        return False

    with files.running(tmp_path) as server:
        server.fault = touch
        with pytest.raises(UserError, match="changed on its server while it was read"):
            attempt(server, tmp_path / "little")
    assert not manifests.exists(tmp_path / "little")


def test_an_empty_or_cut_object(tmp_path, archive):
    with files.running(tmp_path) as server:
        (tmp_path / "archive.zip").write_bytes(b"")
        with pytest.raises(UserError, match="is empty"):
            attempt(server, tmp_path / "little")
        (tmp_path / "archive.zip").write_bytes(archive.read_bytes()[:100_000])
        with pytest.raises(UserError, match=r"archive.zip \(100,000 bytes\) is cut short"):
            attempt(server, tmp_path / "little")


def test_a_redirect_to_an_expiring_address_is_followed_again(server, prepared, tmp_path, capsys):
    """As object stores do: the address redirects to a signed one, which expires after some requests."""
    uses = {}

    def sign(number, handler):
        parts = urlsplit(handler.path)
        if "X-Signature" not in parts.query:
            uses[len(uses)] = 3
            return handler.refuse(302, Location=f"/archive.zip?{SECRET}{len(uses) - 1}")
        ticket = int(parts.query.removeprefix(SECRET))
        uses[ticket] -= 1
        return uses[ticket] < 0 and handler.refuse(403)

    server.fault = sign
    attempt(server, tmp_path / "little", PATIENT, workers=2)
    assert len(uses) > 2
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert "secret" not in capsys.readouterr().err
    assert b"secret" not in b"".join(contents(tmp_path / "little").values())


def test_a_late_answer_that_its_address_has_expired_is_passed_over(server, archive):
    """Of two threads one is told so only when the other reads by the next address already."""
    asked, begun, renewed = [], threading.Event(), threading.Event()

    def sign(number, handler):
        query = urlsplit(handler.path).query
        if not query:
            asked.append(number)
            return handler.refuse(302, Location=f"/archive.zip?{SECRET}{len(asked)}")
        if number <= 2 or query != f"{SECRET}1":
            return False
        if not begun.is_set():
            begun.set()
            assert renewed.wait(patience.IDLE)
        return handler.refuse(403)

    server.fault = sign
    source = HttpSource(f"{server.url}/archive.zip", Traffic(), patience=HASTE)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(source.read_range, 0, 100)
        try:
            assert begun.wait(patience.IDLE)
            assert bytes(source.read_range(100, 100)) == archive.read_bytes()[100:200]
        finally:
            renewed.set()
        assert bytes(late.result()) == archive.read_bytes()[:100]
    assert len(asked) == 2


def test_signatures_in_the_address_are_never_shown(server, tmp_path, capsys):
    url = f"{server.url}/archive.zip?{SECRET}"
    build(config(url, tmp_path / "little"))
    build(config(url, tmp_path / "little"))
    for fault in (lambda n, h: h.refuse(403), lambda n, h: h.reset()):
        server.fault = fault
        with pytest.raises((UserError, ExitError)) as caught:
            build(config(url, tmp_path / "other"), Options(patience=HASTE))
        assert "very-secret" not in str(caught.value)
        assert (
            caught.value.__suppress_context__
            or caught.value.__context__ is None
            or "secret" not in repr(caught.value.__context__)
        )
    assert "secret" not in capsys.readouterr().err
    assert b"secret" not in b"".join(contents(tmp_path).values())


def test_a_signed_address_comes_from_the_secret_and_is_read_again_when_it_expires(
    server, prepared, tmp_path, monkeypatch, capsys
):
    """As on a cluster, where a Secret is renewed while its pod runs; the settings have the address without it."""
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path))
    url, signed = f"{server.url}/archive.zip", tmp_path / "http/url"
    signed.parent.mkdir()
    signed.write_text(f"{url}?X-Amz-Signature=secret0\n")
    tickets, uses = [], {}

    def answer(number, handler):
        ticket = urlsplit(handler.path).query
        uses[ticket] = uses.get(ticket, 0) + 1
        if not ticket or uses[ticket] > 3:
            tickets.append(ticket)
            signed.write_text(f"{url}?X-Amz-Signature=secret{len(tickets)}\n")
            return handler.refuse(403)
        return False

    server.fault = answer
    build(config(url, tmp_path / "little", workers=1), Options(patience=HASTE))
    assert tickets == [f"X-Amz-Signature=secret{n}" for n in range(len(tickets))]
    assert len(tickets) > 1
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert "secret" not in capsys.readouterr().err.replace(str(tmp_path), "")
    assert b"secret" not in b"".join(contents(tmp_path / "little").values())
    signed.write_text(f"{server.url}/other.zip?X-Amz-Signature=secret\n")
    with pytest.raises(UserError, match=r"holds the address of something else than source.url"):
        build(config(url, tmp_path / "other"), Options(patience=HASTE))


@pytest.mark.parametrize("query", ["X-Amz-Signature=1", "X-Goog-Signature=1", "sv=1&sig=1", "Signature=1", "token=1"])
def test_a_signature_in_the_settings_is_refused_with_the_remedy(query):
    with pytest.raises(UserError, match=r"source.url: must not hold a signature .*key `url` of the Secret") as caught:
        config(f"https://data.example.com/a.zip?{query}", "/x")
    assert query not in str(caught.value)
    assert config("https://data.example.com/a.zip?download=1&design=2", "/x").source.url


def test_a_redirect_out_of_https_is_refused(server, archive, tmp_path, monkeypatch):
    root, certificate = guarded.authority(tmp_path / "tls")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(root))
    with guarded.https(archive.parent, certificate) as secure:
        url = secure.url.replace("http:", "https:")
        plain = f"{server.url}/archive.zip?{SECRET}"
        secure.fault = lambda number, handler: handler.refuse(302, Location=plain)
        with pytest.raises(UserError, match=r"redirects to http://127.* without encryption") as caught:
            HttpSource(f"{url}/moved.zip", Traffic(), patience=HASTE)
        assert "secret" not in str(caught.value)
        assert server.requests == []
        secure.fault = lambda number, handler: "moved" in handler.path and handler.refuse(302, Location="/archive.zip")
        assert HttpSource(f"{url}/moved.zip", Traffic(), patience=HASTE).size == archive.stat().st_size


def test_bytes_damaged_on_the_way_are_fetched_again(server, prepared, tmp_path):
    """A CRC-32 that is wrong once does not fail the archive."""
    damaged = []

    def damage(number, handler):
        start, _, stop = handler.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not damaged and int(stop) - int(start) > 100_000:
            damaged.append(number)
            send = handler.send_part

            def send_damaged(file, length):
                content = file.read(length)
                handler.wfile.write(content[:50_000] + b"\x00" * 9 + content[50_009:])
                handler.send_part = send

            handler.send_part = send_damaged
        return False

    server.fault = damage
    attempt(server, tmp_path / "little", workers=1)
    assert damaged
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
