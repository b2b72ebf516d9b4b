"""A certificate authority for tests: good, expired and foreign certificates, as files."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """Its certificate is `folder/NAME.pem`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name}.pem"
        made = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        signed = made.sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(Encoding.PEM))

    def certificate(
        self, name: str, *hosts: str, expired: bool = False, password: str = ""
    ) -> Certificate:
        """For `name`, good for the hosts. `password` locks its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        ended = datetime.now(UTC) - timedelta(days=1) if expired else None
        built = _builder(_name(name), self._name, key.public_key(), ended)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            built = built.add_extension(names, critical=False)
        files = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        signed = built.sign(self._key, hashes.SHA256())
        files.cert.write_bytes(signed.public_bytes(Encoding.PEM))
        lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
        files.key.chmod(0o600)
        return files


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    ended: datetime | None = None,
) -> x509.CertificateBuilder:
    end = ended or datetime.now(UTC) + timedelta(days=2)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=4))
        .not_valid_after(end)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
