"""Tokens of users as their tools write them: Kerberos tickets, proxies, JSON Web Tokens."""

from __future__ import annotations

import base64
import json
import struct
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

#: A word that stands in every secret part of these tokens, and in no message.
SECRET = "hidden-word"  # noqa: S105 - it opens nothing


def counted(data: bytes) -> bytes:
    """Bytes after their number, as a ticket file has them."""
    return struct.pack(">I", len(data)) + data


def principal(realm: str, *names: str) -> bytes:
    content = struct.pack(">II", 1, len(names)) + counted(realm.encode())
    for name in names:
        content += counted(name.encode())
    return content


def ticket(user: bytes, service: bytes, end: datetime) -> bytes:
    """An entry of a ticket file, with an address and an entry of authorisation data."""
    start_seconds = int((end - timedelta(hours=24)).timestamp())
    end_seconds = int(end.timestamp())
    key = struct.pack(">H", 18) + counted(SECRET.encode())
    times = struct.pack(">IIII", start_seconds, start_seconds, end_seconds, end_seconds + 9)
    flags = struct.pack(">BI", 0, 0x50E10000)
    addresses = struct.pack(">IH", 1, 2) + counted(b"\x7f\x00\x00\x01")
    authorisation = struct.pack(">IH", 1, 1) + counted(b"data")
    tickets = counted(SECRET.encode()) + counted(b"")
    return user + service + key + times + flags + addresses + authorisation + tickets


def ticket_file(end: datetime, *, realm: str = "CERN.CH", user_name: str = "ada") -> bytes:
    """A credential cache of MIT Kerberos: settings, a ticket of one service, and the main ticket."""
    user = principal(realm, user_name)
    settings = principal("X-CACHECONF:", "krb5_ccache_conf_data", "fast_avail", "krbtgt")
    service = principal(realm, "xrootd", "eospublic.cern.ch")
    main_service = principal(realm, "krbtgt", realm)
    time_offset = struct.pack(">HHii", 1, 8, -1, 0)
    header = struct.pack(">HH", 0x0504, len(time_offset)) + time_offset
    one_day_after_1970 = datetime.fromtimestamp(86400).astimezone()
    settings_entry = ticket(user, settings, one_day_after_1970)
    service_ticket = ticket(user, service, end - timedelta(hours=20))
    main_ticket = ticket(user, main_service, end)
    return header + user + settings_entry + service_ticket + main_ticket


def json_web_token(**claims: object) -> str:
    """A JSON Web Token without a valid signature."""
    parts = [{"alg": "ES256", "typ": "JWT"}, claims]
    texts = [json.dumps(part).encode() for part in parts]
    encoded = [base64.urlsafe_b64encode(text).decode().rstrip("=") for text in texts]
    return ".".join([*encoded, SECRET])


def proxy_file(*ends: datetime) -> bytes:
    """A file as `voms-proxy-init` writes it: a certificate for each end, the key after the first."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Ada Lovelace")])
    blocks = []
    for end in ends:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(end - timedelta(days=400)).not_valid_after(end)
        certificate = builder.sign(key, hashes.SHA256())
        blocks.append(certificate.public_bytes(serialization.Encoding.PEM))
    key_block = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    return b"".join([blocks[0], key_block, *blocks[1:]])
