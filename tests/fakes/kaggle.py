"""Kaggle's download service as its official client sees it: a POST with a login, a 302, and an object that expires."""

import base64
import json
from urllib.parse import parse_qs, urlsplit

from tests.fakes.files import FaultyHandler

USER, KEY, TOKEN = "ada", "0123456789abcdef-secret-key", "KGAT_secret-token"
SIGNATURE = "X-Goog-Signature"
# What each service's request asks for
SERVICES = {
    "/api/v1/competitions.CompetitionApiService/DownloadDataFiles": lambda body: body.get("competitionName"),
    "/api/v1/datasets.DatasetApiService/DownloadDataset": lambda body: (
        body.get("ownerSlug"),
        body.get("datasetSlug"),
        body.get("datasetVersionNumber"),
    ),
}
KNOWN = ("little-imagenet", (USER, "little", None), (USER, "little", 3))


class KaggleHandler(FaultyHandler):
    """Serves `archive.zip` of the folder behind signed addresses, each good for `uses` requests."""

    rules_accepted = True
    uses = 10**9
    busy = 0
    wanted: object = None
    issued: dict[str, int]
    logins: list[str]

    def do_POST(self) -> None:  # noqa: N802 - the base class chose the name
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.logins.append(self.headers.get("Authorization", ""))
        kind = type(self)
        asked = SERVICES.get(urlsplit(self.path).path)
        if asked is None:
            self.refuse(404)
        elif kind.busy > 0:
            kind.busy -= 1
            self.refuse(429, Retry_After="0")
        elif not self._known():
            self.error(401, "Unauthenticated")
        elif not self.rules_accepted:
            self.error(403, "You must accept this competition's rules")
        elif asked(body) not in KNOWN:
            self.error(404, "Not found")
        elif kind.wanted is not None and asked(body) != kind.wanted:
            self.error(500, "Not what the test is about")
        else:
            signature = f"signed-{len(self.issued)}"
            self.issued[signature] = self.uses
            host = f"http://127.0.0.1:{self.server.server_address[1]}"
            self.refuse(302, Location=f"{host}/archive.zip?{SIGNATURE}={signature}")

    def answer(self, *, body: bool) -> None:
        # Through a proxy the client names the whole address
        parts = urlsplit(self.path)
        signature = parse_qs(parts.query).get(SIGNATURE, [""])[0]
        with self.control.lock:
            left = self.issued.get(signature, 0)
            self.issued[signature] = left - 1
        if left <= 0:
            self.refuse(400)
            return
        self.path = parts.path
        super().answer(body=body)

    def error(self, code: int, message: str) -> None:
        text = json.dumps({"code": code, "message": message}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _known(self) -> bool:
        basic = "Basic " + base64.b64encode(f"{USER}:{KEY}".encode()).decode()
        return self.headers.get("Authorization") in (basic, f"Bearer {TOKEN}")
