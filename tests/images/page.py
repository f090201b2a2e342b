"""Ask a file server for pages and files, as a browser or curl would."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from tests import patience


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(url: str, password: str = "", method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
    """Ask with a password by basic authentication, if one is given; underscores of headers' names become hyphens."""
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    if password:
        sent["Authorization"] = "Basic " + base64.b64encode(f":{password}".encode()).decode()
    request = urllib.request.Request(url, data=body, method=method, headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=patience.IDLE) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def form(**fields: str | tuple[str, bytes]) -> tuple[bytes, str]:
    """Return a form as a browser posts it, and its content type; a tuple is a file's name and content."""
    edge = "edge-of-the-form"
    parts = []
    for name, value in fields.items():
        file, content = value if isinstance(value, tuple) else ("", value.encode())
        more = f'; filename="{file}"' if file else ""
        parts.append(f'--{edge}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content)
    return b"\r\n".join([*parts, f"--{edge}--\r\n".encode()]), f"multipart/form-data; boundary={edge}"


def listing(url: str, password: str) -> set[str]:
    """Return the names in a folder, folders with a slash."""
    found = json.loads(ask(f"{url}?ls", password).body)
    return {entry["href"] for kind in ("dirs", "files") for entry in found[kind]}


def log_in(url: str, password: str) -> str:
    """Post the login form and return the session's cookie, empty where there is none."""
    body, kind = form(act="login", cppwd=password)
    cookies = ask(url, "", "POST", body, Content_Type=kind).headers.get_all("Set-Cookie") or []
    return "; ".join(one.split(";")[0] for one in cookies)
