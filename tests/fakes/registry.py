"""A real registry, CNCF distribution, on a free port of loopback: with TLS by a CA of its own, and a password."""

import contextlib
import datetime
import ipaddress
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import requests
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hack.publish import layout
from tests import patience, ports

ROOT = Path(__file__).resolve().parents[2]
USER, PASSWORD = "publisher", "correct-horse-battery"
DAY = datetime.timedelta(days=1)


class Registry(NamedTuple):
    """A registry that runs: its host with port, its CA, and the environment in which programs can use it."""

    host: str
    ca: Path
    env: dict[str, str]
    log: Path

    def get(self, path: str) -> requests.Response:
        """Ask for a path below /v2/, with the password."""
        url, kinds = f"https://{self.host}/v2/{path}", {"Accept": f"{layout.MANIFEST}, */*"}
        return requests.get(url, auth=(USER, PASSWORD), verify=str(self.ca), headers=kinds, timeout=60)


@contextlib.contextmanager
def running(folder: Path, address: str = "127.0.0.1") -> Iterator[Registry]:
    """Serve a registry at an address of this machine while the block runs; what it stores is below the folder."""
    program = subprocess.run([ROOT / "hack/registry/build"], check=True, capture_output=True, text=True).stdout.strip()
    port = ports.free()
    host = f"{address}:{port}"
    ca = certificates(folder, address)
    login = subprocess.run(
        [program, "--password"], input=f"{USER}:{PASSWORD}", check=True, capture_output=True, text=True
    )
    (folder / "passwords").write_text(login.stdout)
    config = {
        "version": 0.1,
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "auth": {"htpasswd": {"realm": "tests", "path": str(folder / "passwords")}},
        "http": {
            "addr": host,
            "secret": "tests",
            "tls": {"certificate": str(folder / "server.crt"), "key": str(folder / "server.key")},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    own = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    (folder / "trusted.crt").write_bytes(ca.read_bytes() + (Path(own).read_bytes() if own else b""))
    trusted = {"SSL_CERT_FILE": str(folder / "trusted.crt"), "USERNAME": USER, "PASSWORD": PASSWORD}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen([program, folder / "config.yaml"], stdout=out, stderr=out)
    try:
        registry = Registry(host, ca, os.environ | trusted, log)
        patience.wait(log.read_text, lambda: _answers(registry, process), log.read_text)
        yield registry
    finally:
        process.terminate()
        process.wait()


def _answers(registry: Registry, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, registry.log.read_text()
    with contextlib.suppress(requests.ConnectionError):
        return registry.get("").status_code == 200
    return False


def certificates(folder: Path, address: str) -> Path:
    """Write server.crt and server.key for an address, signed by a new CA; return the CA's certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    signed = [(ca_key, ca_name, True, folder / "ca.crt")]
    signed.append((key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)]), False, folder / "server.crt"))
    for one, name, is_ca, path in signed:
        builder = x509.CertificateBuilder(
            ca_name, name, one.public_key(), x509.random_serial_number(), now - DAY, now + DAY
        )
        builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        if not is_ca:
            names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        path.write_bytes(builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "server.key").write_bytes(private)
    return folder / "ca.crt"
