"""An archive on an HTTP server, read by ranges over one connection per thread.

The object must not change while it is read: every answer's size, ETag and date are compared with the first one's.
Throttling, resets, short answers and server errors are retried with growing pauses, resuming where the last answer
ended. The target of a redirect is used until the server refuses it, then the redirect is followed again, because signed
addresses expire; one from https to http is refused. Addresses are never shown with their query, which may hold a
signature.
"""

import logging
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from trainyard.core.exits import UserError
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.retry import PassingError, Patience, Retries

_CHUNK = 256 << 10
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})$")
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# Remedies that name where a cluster's values hold them; elsewhere it is the environment
_CERTIFICATE = (
    "check the address, or give the certificates of those who signed it (global.caBundle, or REQUESTS_CA_BUNDLE)"
)
_PROXY = (
    "the proxy wants a user name and password: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, on a cluster as a key of a "
    "Secret in dataset.envFrom"
)
# What object stores answer when a signed address has expired
_EXPIRED = {400, 401, 403, 410}


def _hide_queries(record: logging.LogRecord) -> bool:
    """Take signatures out of what urllib3 logs of its requests, should someone turn that on."""
    if isinstance(record.args, tuple):
        record.args = tuple(a.partition("?")[0] if isinstance(a, str) else a for a in record.args)
    return True


for _name in ("urllib3.connectionpool", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_hide_queries)


class _Session(requests.Session):
    """A session that does not leave https once it is there."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return where the answer redirects to; raises UserError where that is not encrypted any more."""
        target = super().get_redirect_target(resp)
        if target and resp.url.startswith("https:") and urlsplit(urljoin(resp.url, target)).scheme != "https":
            raise UserError(
                f"{without_query(resp.url)} redirects to {without_query(urljoin(resp.url, target))}, without "
                "encryption, where anybody on the way could read and change it; have the server redirect to https, or "
                "copy the archive to a volume"
            )
        return target


class HttpSource(Source):
    """Reads ranges of one object over HTTP or HTTPS.

    `locate` asks for a fresh address where addresses expire.
    """

    def __init__(
        self,
        url: str,
        traffic: Traffic,
        *,
        label: str = "",
        locate: Callable[[], str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.label = label or without_query(url)
        self._locate = locate or (lambda: url)
        self._traffic = traffic
        self._patience = patience or Patience()
        self._retries = Retries(self.label, traffic, self._patience)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._address = ""
        self._proven: set[str] = set()  # addresses that have worked
        self._identity: tuple[int, str, str] | None = None
        self.read_range(0, 1)
        assert self._identity is not None
        self.size = self._identity[0]
        self.identity = " ".join(map(str, self._identity))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from `offset` on."""
        self._retries.fill(offset, buffer, self._stream)

    def close(self) -> None:
        """Stop waiting for retries; connections close with their threads."""
        self._retries.stop()

    def _stream(self, offset: int, length: int) -> Iterator[bytes]:
        """Request a range once and yield its bytes; every failure that may pass raises PassingError."""
        address = self._where()
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
        self._traffic.add(requests=1)
        try:
            with self._session().get(address, headers=headers, stream=True, timeout=self._patience.timeout) as response:
                self._check(response, address, offset)
                while length > 0 and (chunk := response.raw.read(min(_CHUNK, length), decode_content=False)):
                    length -= len(chunk)
                    yield chunk
        except requests.exceptions.SSLError as error:
            if _cut_off(error):
                raise PassingError("the connection was cut while it was being encrypted") from None
            raise UserError(f"{self.label} cannot be asked for: {_cause(error)}; {_CERTIFICATE}") from None
        except requests.exceptions.ProxyError as error:
            if "407" in str(error):
                raise UserError(f"{self.label} cannot be asked for: {_PROXY}") from None
            raise PassingError(f"the proxy was not reached or does not let through: {_cause(error)}") from None
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.TooManyRedirects,
        ) as error:
            raise UserError(f"{self.label} cannot be asked for: {_cause(error)}; check the address") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise PassingError(_cause(error)) from None
        if length > 0:
            raise PassingError("the answer was cut short")

    def _check(self, response: requests.Response, address: str, offset: int) -> None:
        """Accept an answer only if it is the requested range of the object that was seen first."""
        status = response.status_code
        if status in _PASSING:
            raise PassingError(f"the server answered {status} {response.reason}", response.headers.get("Retry-After"))
        if status in _EXPIRED and address in self._proven:  # another thread may have the next one already
            with self._lock:
                self._address = "" if self._address == address else self._address
            raise PassingError(f"the server answered {status}: the address has expired")
        if status == 200:
            raise UserError(
                f"the server of {self.label} does not answer range requests; put the archive on one that does (nginx, "
                "object stores), or copy it to a volume and set source.kind to 'path'"
            )
        if status == 416:
            raise UserError(
                f"{self.label} is empty or became shorter while it was read; check the archive on its server"
            )
        if status != 206:
            raise UserError(
                f"{self.label} was refused: the server answered {status} {response.reason}; {_remedy(status)}"
            )
        self._compare(response, offset)
        with self._lock:
            self._proven.add(response.url)
            if self._address == address:
                self._address = response.url

    def _compare(self, response: requests.Response, offset: int) -> None:
        """Compare the answer with the first one; raises UserError if the object changed."""
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if not match or int(match[1]) != offset:
            raise UserError(
                f"the server of {self.label} answers range requests wrongly; copy the archive to a volume instead"
            )
        found = int(match[2]), response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
        with self._lock:
            self._identity = self._identity or found
        if found != self._identity:
            raise UserError(
                f"{self.label} changed on its server while it was read; run the same command once it no longer changes"
            )

    def _where(self) -> str:
        """Return the address in use, after asking for one if there is none."""
        with self._lock:
            if not self._address:
                self._address = self._locate()
            return self._address

    def _session(self) -> requests.Session:
        """Return this thread's session, whose connection stays open between requests."""
        if not hasattr(self._local, "session"):
            self._local.session = _Session()
        return self._local.session  # type: ignore[no-any-return]


def without_query(url: str) -> str:
    """Shorten an address to what may be shown."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _remedy(status: int) -> str:
    if status == 407:
        return _PROXY
    if status == 404:
        return "check the address"
    if status in (401, 403):
        return (
            "check that its signature has not expired, or give user name and password in a netrc file (on a cluster "
            "the Secret of global.secrets.http)"
        )
    return "check the address and the server's log"


def _cut_off(error: BaseException) -> bool:
    """Whether the other end, or a proxy between, closed a connection while it was being encrypted."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
            return True
        seen = _within(seen)
    return False


def _within(error: BaseException) -> BaseException | None:
    """Return the error that a library's error is about."""
    inner = [one for one in (getattr(error, "reason", None), *error.args) if isinstance(one, BaseException)]
    return inner[0] if inner else error.__cause__ or error.__context__


def _cause(error: BaseException) -> str:
    """Say in a few words what broke, without the address that the libraries' own messages hold."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror and not isinstance(seen, requests.RequestException):
            return str(seen.strerror)
        seen = _within(seen)
    return {
        "ConnectTimeout": "no connection in time",
        "ReadTimeout": "no answer in time",
        "IncompleteRead": "the answer was cut short",
    }.get(type(error).__name__, type(error).__name__)
