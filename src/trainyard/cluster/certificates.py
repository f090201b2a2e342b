"""Until when certificates are valid, which the standard library tells of a connection's own alone."""

import contextlib
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trainyard.cluster import connection

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
# Validity of a certificate in DER (RFC 5280, 4.1.2.5): a sequence of two times, each UTCTime or GeneralizedTime
VALIDITY = re.compile(rb"\x30.(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)", re.S)


class Validity(NamedTuple):
    """From when until when a certificate is valid."""

    begin: datetime
    end: datetime


def read_validities(text: str) -> list[Validity]:
    """Return those of the certificates of a PEM text; raises ValueError where it holds none or a broken one."""
    found = []
    for one in PEM.findall(text):
        told = VALIDITY.search(ssl.PEM_cert_to_DER_cert(one))
        if not told:
            raise ValueError("it holds a certificate that is broken")
        found.append(Validity(*(parse_time(digits.decode()) for digits in told.groups() if digits)))
    if not found:
        raise ValueError("it holds no certificate")
    return found


def parse_time(digits: str) -> datetime:
    """Return a time of a certificate; with two digits of the year it is of 1950 to 2049."""
    if len(digits) == 12:
        digits = ("19" if int(digits[:2]) >= 50 else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def read_own() -> tuple[tuple[str, Validity], ...]:
    """Return those of this connection, as far as known: `user` logs in by a certificate, `server` shows one."""
    settings, found = connection.client().settings, {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # TypeError: this user logs in otherwise
        found["user"] = read_validities(Path(settings.cert_file).read_text())[0]
    where = urlsplit(settings.host)
    if where.scheme == "https" and where.hostname and not settings.proxy:
        with contextlib.suppress(OSError, ValueError):
            shown = ssl.get_server_certificate((where.hostname, where.port or 443), timeout=5.0)
            found["server"] = read_validities(shown)[0]
    return tuple(found.items())
