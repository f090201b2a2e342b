"""Run the programs that build and copy, and turn what they say into one line that names the remedy."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFUSED = ("unauthorized", "authentication required", "forbidden", "denied")
UNREACHED = ("connection refused", "no such host", "timeout", "certificate", "network is unreachable", ": eof")


class PublishError(Exception):
    """What keeps a version from being published; the message reports the cause and the remedy."""


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> bytes:
    """Run a program and return what it prints. Raises PublishError with its last words."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, check=False)
    except FileNotFoundError:
        raise PublishError(f"{words[0]} is missing: run hack/bootstrap cluster and hack/tools/build") from None
    if done.returncode:
        raise PublishError(_last_words(words[0], done.stderr.decode(errors="replace")))
    return done.stdout


def _last_words(program: str, said: str) -> str:
    """Return the line of an error that says what is wrong, without the password."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = next((line for line in reversed(lines) if "level=fatal" in line or "Error" in line), "\n".join(lines[-3:]))
    text = " ".join(text.split())
    if secret := os.environ.get("PASSWORD"):
        text = text.replace(secret, "***")
    return f"{Path(program).name}: {text}"


def explain(registry: str, error: PublishError) -> PublishError:
    """Return an error of a registry with the remedy, where its words are known."""
    text = str(error)
    host = registry.partition("/")[0]
    if any(word in text.lower() for word in REFUSED):
        return PublishError(
            f"{registry} refuses the login: set USERNAME and PASSWORD, or run `skopeo login {host}`, for an account "
            f"that may push there ({text})"
        )
    if any(word in text.lower() for word in UNREACHED):
        return PublishError(
            f"{host} does not answer, or this machine does not trust its certificate: check the name and the network; "
            f"SSL_CERT_FILE names a file with the certificates to trust ({text})"
        )
    return error
