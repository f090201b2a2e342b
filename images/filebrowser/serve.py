"""Show the folders `data` and `results` in a web page, behind a password: copyparty with this project's settings.

    python3 serve.py

Settings are environment variables: FILEBROWSER_ROOT (/srv: where the two folders lie), FILEBROWSER_PASSWORD_FILE
(/etc/filebrowser/password), FILEBROWSER_ADDRESS (all), FILEBROWSER_PORT (8080), and FILEBROWSER_WRITABLE (false; true
lets the page upload to, move and delete in `results`).

The password is read from its file, and copyparty gets its hash inside this process: no process list, file or log holds
either. Guesses are limited, see Guesses. When the file changes, the server restarts with the new password, and sessions
of the old one end.
"""

import os
import resource
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from copyparty.__main__ import main as copyparty  # type: ignore[import-untyped]
from copyparty.pwhash import PWHash  # type: ignore[import-untyped]

FOLDERS = ("data", "results")
LEAST, MOST = 8, 255  # characters of a password; copyparty's limit
GUESSES, REFILL = 20, 3.0  # wrong passwords in a row; seconds until there is one more
WATCH = 5.0  # seconds between reads of the password's file
HASH = "scrypt,13,1,8,1"  # 16 MiB and some 30 ms a guess; copyparty hashes one at a time
SETTINGS = (
    # Files are listed and sent, not opened: no thumbnails, archives, READMEs or types that a link chooses
    *("--no-thumb", "--no-mtag-ff", "--no-zls", "--no-readme", "--no-logues", "--no-mime", "--no-robots"),
    *("--no-dav", "--no-tarcmp", "--no-reload", "--no-rescan", "--no-stack", "--no-ups-page", "--urlform=get"),
    "--csp-dl=sandbox",  # a page of a claim, such as a report, gets neither scripts nor the reader's session
    *("--xvol", "--vol-or-crash"),  # links are followed inside the two folders and nowhere else
    # Behind an Ingress all requests come from one address: believe its headers, and lock no address out
    *("--xff-src=any", "--rproxy=-1", "--ban-pw=no", "--ban-404=no", "--ban-403=no", "--ban-422=no", "--ban-url=no"),
    *("--http-only", "--no-ansi", "-nb", "-nih", "--log-utc", "--log-date=%Y-%m-%d", "--log-badpwd=0"),
)


class PasswordError(Exception):
    """The password is missing or cannot be used; the message says what to do."""


def read_password(file: Path) -> str:
    """Return the password that a file holds, without a line break at its end; raise PasswordError."""
    try:
        password = file.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PasswordError(f"{file} cannot be read ({error}): the Secret needs a key `password`") from None
    if not LEAST <= len(password) <= MOST or not password.isprintable():
        raise PasswordError(
            f"the password in {file} has {len(password)} characters: give one line of {LEAST} to {MOST} printable ones"
        )
    return password


class Guesses:
    """Wrong passwords that may still be tried: GUESSES at once, then one in REFILL seconds, from all addresses.

    Behind an Ingress all readers share an address, so none is locked out alone. When none is left, no password is
    compared, the right one neither: else each guess would still be answered. Sessions do not need the password.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._left, self._at, self._said = now, float(GUESSES), now(), -60.0
        self._lock = threading.Lock()

    def may(self) -> bool:
        """Whether a password may be compared now; says so about once a minute where not."""
        with self._lock:
            now = self._now()
            self._left, self._at = min(GUESSES, self._left + (now - self._at) / REFILL), now
            if self._left >= 1:
                return True
            if now - self._said >= 60:
                self._said = now
                text = f"many wrong passwords: no more than one in {REFILL:.0f} s is compared, others are refused"
                print(f"serve: {text}", file=sys.stderr, flush=True)
            return False

    def wrong(self) -> None:
        """Count a wrong password."""
        with self._lock:
            self._left -= 1


def limit(guesses: Guesses, right: str) -> None:
    """Let copyparty compare passwords only while guesses are left; `right` is the right one's hash."""
    compare = PWHash._cache_hash

    def limited(self: PWHash, plain: str) -> str:
        # One that was wrong before, such as a browser's ended session, is wrong again and tells nothing
        if self.cache.get(plain, right) != right:
            return str(self.cache[plain])
        if not plain or not guesses.may():
            return ""
        found = str(compare(self, plain))
        if found != right:
            guesses.wrong()
        return found

    PWHash._cache_hash = limited


def arguments(env: dict[str, str], password: str, state: Path) -> list[str]:
    """Return copyparty's command line, which stays inside this process; `state` is a folder for what it writes."""
    salt = secrets.token_urlsafe(18)
    hashed = PWHash(SimpleNamespace(ah_alg=HASH, ah_salt=salt)).hash(password)
    limit(Guesses(), hashed)
    writable = env.get("FILEBROWSER_WRITABLE") == "true"
    root = env.get("FILEBROWSER_ROOT", "/srv")
    volumes = [f"-v{root}/{name}:/{name}:{'rwmd' if writable and name == 'results' else 'r'},user" for name in FOLDERS]
    listen = ["-p", env.get("FILEBROWSER_PORT", "8080"), "-i", env.get("FILEBROWSER_ADDRESS", "::")]
    own = [f"--ah-alg={HASH}", f"--ah-salt={salt}", f"--hist={state}/hist", f"--ses-db={state}/sessions.db"]
    return ["copyparty", "-a", f"user:{hashed}", *volumes, *listen, *own, *SETTINGS]


def restart_on_change(file: Path, password: str, state: Path) -> None:
    """Restart this program once the file holds another usable password."""
    said = ""
    while True:
        time.sleep(WATCH)
        try:
            changed = read_password(file) != password
        except PasswordError as error:
            if str(error) != said:
                print(f"serve: the password stays as it was: {error}", file=sys.stderr, flush=True)
            said = str(error)
            continue
        if changed:
            print("serve: the password has changed", file=sys.stderr, flush=True)
            shutil.rmtree(state, ignore_errors=True)
            os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> int:
    """Serve until stopped; end 2 when the password cannot be used."""
    file = Path(os.environ.get("FILEBROWSER_PASSWORD_FILE", "/etc/filebrowser/password"))
    try:
        password = read_password(file)
    except PasswordError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the password
    state = Path(tempfile.mkdtemp(prefix="filebrowser-"))
    os.environ["XDG_CONFIG_HOME"] = str(state)
    threading.Thread(target=restart_on_change, args=(file, password, state), daemon=True).start()
    copyparty(arguments(dict(os.environ), password, state))
    return 0


if __name__ == "__main__":
    sys.exit(main())
