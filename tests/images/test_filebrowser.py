"""The file server that the image runs, on folders of this machine: access, and how the password changes."""

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from tests import patience, ports
from tests.images.page import ask, form, listing, log_in

SERVE = Path(__file__).parents[2] / "images" / "filebrowser" / "serve.py"
PASSWORD = "correct: horse #1 +staple"
REFUSED = (401, 403)  # the first to browsers, with a login form
MODEL, OUTSIDE = b"weights " * 5000, b"what nobody may read"


def answers(url: str, password: str = "") -> bool:
    try:
        return ask(url, password).status == 200
    except OSError:
        return False


@contextmanager
def served(folder: Path, writable: str = "false") -> Iterator[str]:
    """Make two claims in a folder and show them; yields the page's address."""
    for name in ("data/set", "results/runs/a"):
        (folder / name).mkdir(parents=True)
    (folder / "data/set/shard.tar").write_bytes(MODEL)
    (folder / "results/runs/a/model.pth").write_bytes(MODEL)
    (folder / "results/runs/a/report.html").write_text("<script>alert(1)</script>")
    (folder / "outside").write_bytes(OUTSIDE)
    (folder / "password").write_text(PASSWORD + "\n")
    port = ports.free()
    env = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(folder / "tmp"),
        "FILEBROWSER_ROOT": str(folder),
        "FILEBROWSER_PASSWORD_FILE": str(folder / "password"),
        "FILEBROWSER_ADDRESS": "127.0.0.1",
        "FILEBROWSER_PORT": str(port),
        "FILEBROWSER_WRITABLE": writable,
    }
    (folder / "tmp").mkdir()
    dumping = ["sh", "-c", 'ulimit -Sc "$(ulimit -Hc)"; exec "$@"', "sh"]  # as where a node allows core dumps
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*dumping, sys.executable, SERVE], env=env, stdout=log, stderr=subprocess.STDOUT)
    (folder / "pid").write_text(str(server.pid))
    try:
        patience.wait("no answer", lambda: answers(f"http://127.0.0.1:{port}/"), patience.still)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(patience.IDLE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[str]:
    with served(folder) as url:
        results = folder / "results"
        (results / "absolute").symlink_to(folder / "outside")
        (results / "relative").symlink_to("../outside")
        (results / "folder").symlink_to(folder)
        (results / "process").symlink_to("/proc/self/environ")
        (results / "round").symlink_to("round")
        (results / "newest").symlink_to("runs/a")
        (results / "set").symlink_to("../data/set")
        yield url


@pytest.mark.parametrize("password", ["", "wrong password", PASSWORD[:-1], "+" * 40])
def test_without_the_password_there_is_no_file_and_no_name(page: str, password: str) -> None:
    for path in ("/results/runs/a/model.pth", "/results/?ls", "/results/?zip", "/data/set/shard.tar", "/nothing"):
        answer = ask(page + path, password)
        assert answer.status in REFUSED, path
        assert b"weights" not in answer.body
    body = ask(f"{page}/", password).body + ask(f"{page}/?ls", password).body
    assert b"results" not in body
    assert not log_in(page, password) or "cppwd=x" in log_in(page, password)


def test_with_it_there_are_listings_ranges_and_archives(page: str) -> None:
    assert listing(f"{page}/", PASSWORD) == {"data/", "results/"}
    assert listing(f"{page}/results/runs/a/", PASSWORD) == {"model.pth", "report.html"}
    part = ask(f"{page}/results/runs/a/model.pth", PASSWORD, Range="bytes=100-299")
    assert (part.status, part.body) == (206, MODEL[100:300])
    assert part.headers["Content-Range"] == f"bytes 100-299/{len(MODEL)}"
    archive = zipfile.ZipFile(BytesIO(ask(f"{page}/results/runs/?zip", PASSWORD).body))
    assert set(archive.namelist()) == {"runs/a/model.pth", "runs/a/report.html"}
    cookie = log_in(page, PASSWORD)
    assert PASSWORD not in cookie
    assert ask(f"{page}/data/set/shard.tar", Cookie=cookie).body == MODEL


def test_links_lead_nowhere_but_within_the_claims(page: str) -> None:
    for link in ("absolute", "relative", "folder/outside", "folder/password", "process", "round"):
        answer = ask(f"{page}/results/{link}", PASSWORD)
        assert answer.status in (403, 404), link
        assert OUTSIDE not in answer.body
    archive = zipfile.ZipFile(BytesIO(ask(f"{page}/results/?zip", PASSWORD).body))
    assert not {"results/absolute", "results/relative", "results/folder/outside"} & set(archive.namelist())
    assert ask(f"{page}/results/newest/model.pth", PASSWORD).body == MODEL
    assert ask(f"{page}/results/set/shard.tar", PASSWORD).body == MODEL


def test_a_page_of_a_claim_may_not_act_for_its_reader(page: str) -> None:
    report = ask(f"{page}/results/runs/a/report.html", PASSWORD)
    assert report.headers["Content-Type"].startswith("text/html")
    assert report.headers["Content-Security-Policy"] == "sandbox"
    body, kind = form(act="login", cppwd=PASSWORD)
    assert ask(page, "", "POST", body, Content_Type=kind, Origin="https://elsewhere.example.com").status == 403


def test_the_login_works_behind_a_proxy_that_speaks_tls(page: str) -> None:
    body, kind = form(act="login", cppwd=PASSWORD)
    proxied = {"Origin": "https://files.example.com", "Host": "files.example.com", "X_Forwarded_Proto": "https"}
    answer = ask(page, "", "POST", body, Content_Type=kind, X_Forwarded_For="192.0.2.7", **proxied)
    assert answer.status == 200
    assert "Secure" in str(answer.headers.get_all("Set-Cookie"))


def test_many_wrong_passwords_lock_nobody_out(page: str) -> None:
    for number in range(10):
        log_in(page, f"wrong password {number}")
        ask(f"{page}/results/runs/a/model.pth", f"wrong password {number}")
    # The guesses of this file's tests together are more than are compared at once; there is one more every 3 s
    patience.wait(
        "the right password is taken", lambda: ask(f"{page}/results/runs/a/model.pth", PASSWORD).status == 200,
        patience.still,
    )  # fmt: skip


def test_nothing_is_written_and_nothing_of_the_password_is_said(page: str, folder: Path) -> None:
    before = sorted(str(path) for root in ("data", "results") for path in (folder / root).rglob("*"))
    body, kind = form(act="bput", f=("new.txt", b"new"))
    file = f"{page}/results/runs/a/model.pth"
    assert ask(f"{page}/results/new.txt", PASSWORD, "PUT", b"new").status == 403
    assert ask(f"{page}/results/", PASSWORD, "POST", body, Content_Type=kind).status == 403
    assert ask(file, PASSWORD, "DELETE").status == 403
    assert ask(f"{file}?delete", PASSWORD, "POST", b"").status >= 400
    assert ask(f"{file}?move=/results/other", PASSWORD, "POST", b"").status >= 400
    assert sorted(str(path) for root in ("data", "results") for path in (folder / root).rglob("*")) == before
    ask(f"{page}/results/?pw=correct%3A%20horse%20%231%20%2Bstaple")
    said = (folder / "log").read_bytes()
    assert b"GET  /results/" in said
    for word in (b"horse", b"wrong password "):  # what was tried; the notice says "wrong passwords"
        assert word not in said
    kept = [path.read_bytes() for path in (folder / "tmp").rglob("*") if path.is_file()]
    assert not any(b"horse" in content for content in kept)


def test_a_crash_leaves_no_core(page: str, folder: Path) -> None:
    """A core would hold the password. The limit is what the kernel reads."""
    limits = Path(f"/proc/{(folder / 'pid').read_text()}/limits").read_text().splitlines()
    assert [line.split()[-3:-1] for line in limits if line.startswith("Max core file size")] == [["0", "0"]]


def test_writable_results_take_uploads_and_the_data_does_not(tmp_path: Path) -> None:
    with served(tmp_path, "true") as page:
        body, kind = form(act="bput", f=("new.txt", b"new"))
        assert ask(f"{page}/results/", PASSWORD, "POST", body, Content_Type=kind).status < 300
        assert (tmp_path / "results/new.txt").read_bytes() == b"new"
        assert ask(f"{page}/results/runs/a/model.pth", PASSWORD, "DELETE").status < 300
        assert not (tmp_path / "results/runs/a/model.pth").exists()
        assert ask(f"{page}/data/", PASSWORD, "POST", body, Content_Type=kind).status == 403
        assert ask(f"{page}/data/set/shard.tar", PASSWORD, "DELETE").status == 403
        assert ask(f"{page}/results/", "wrong password", "POST", body, Content_Type=kind).status in REFUSED
    assert not list(tmp_path.glob("*/**/.hist"))


def test_a_new_password_in_the_file_ends_the_sessions_of_the_old_one(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        file, cookie = f"{page}/data/set/shard.tar", log_in(page, PASSWORD)
        assert ask(file, Cookie=cookie).status == 200
        (tmp_path / "password").write_text("quite another one\n")
        patience.wait("the new password holds", lambda: answers(file, "quite another one"), patience.still)
        assert ask(file, PASSWORD).status in REFUSED
        assert ask(file, Cookie=cookie).status in REFUSED


@pytest.mark.parametrize(
    ("content", "said"), [("short", "5 characters"), ("two\nlines", "9 characters"), (None, "key")]
)
def test_a_password_that_cannot_be_used_is_an_error_in_words(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "password").write_text(content)
    env = os.environ | {"FILEBROWSER_PASSWORD_FILE": str(tmp_path / "password")}
    done = patience.run([sys.executable, SERVE], env=env)
    assert done.returncode == 2
    assert said in done.stderr
    assert "short" not in done.stderr


def test_guesses_are_limited_and_sessions_are_not(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        session = log_in(url, PASSWORD)
        secret = f"{url}/results/runs/a/model.pth"
        assert all(ask(secret, f"wrong {number}").status in REFUSED for number in range(60))

        def refused_after(guess: str) -> bool:
            """Whether the right password is refused after a wrong one; it is not when one more guess was just due."""
            return ask(secret, guess).status in REFUSED and ask(secret, PASSWORD).status in REFUSED

        assert any(refused_after(f"guess {n}") for n in range(20)), "a guesser would learn which password is right"
        assert ask(secret, Cookie=session).status == 200
        assert "many wrong passwords: no more than one in 3 s is compared" in (tmp_path / "log").read_text()
        patience.wait("another is compared", lambda: ask(secret, PASSWORD).status == 200, patience.still)


def test_the_same_wrong_password_counts_once(tmp_path: Path) -> None:
    """As an ended session's cookie, which a browser sends with each of a page's parts."""
    with served(tmp_path) as url:
        assert all(ask(f"{url}/results/", Cookie="cppwd=of-yesterday").status in REFUSED for _ in range(60))
        assert listing(f"{url}/", PASSWORD) == {"data/", "results/"}
