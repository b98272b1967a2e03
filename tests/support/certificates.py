"""An authority for tests, and certificates of it: made anew each time, good for an hour."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)


class Pair(NamedTuple):
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates into `directory`; `ca` is its own."""

    def __init__(self, directory: Path, name: str = "qim-test-authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._name = directory, _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, *names: str) -> Pair:
        """A certificate for `names` (hosts or addresses), for servers and clients; replaces an older one."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_alternative(name) for name in names or ("localhost", "127.0.0.1")]
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        made = (
            _builder(_named(file), self._name, key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(usage, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._directory / f"{file}.crt", self._directory / f"{file}.key")
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return pair


def serial_of(der: bytes) -> int:
    """The serial number of a certificate as a peer shows it."""
    return x509.load_der_x509_certificate(der).serial_number


def serial_in(path: Path) -> int:
    """The serial number of a certificate in a file."""
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HOUR)
        .not_valid_after(now + HOUR)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
