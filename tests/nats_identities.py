"""Identities for brokers of the tests: nkeys, JWT credentials, certificates."""

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped] # the package has no types

USER, ACCOUNT, OPERATOR = nkeys.PREFIX_BYTE_USER, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_OPERATOR


def new_pair(kind: int) -> tuple[nkeys.KeyPair, str, str]:
    """A key pair, its seed and its public name."""
    seed = nkeys.encode_seed(os.urandom(32), kind)
    pair = nkeys.from_seed(bytearray(seed))
    return pair, bytes(seed).decode(), pair.public_key.decode()


def operator_setup(folder: Path) -> tuple[str, Path]:
    """An operator with one account that may use JetStream; its configuration, and a user's credentials file."""
    operator, _, operator_name = new_pair(OPERATOR)
    account, _, account_name = new_pair(ACCOUNT)
    _, _, system_name = new_pair(ACCOUNT)
    _, user_seed, user_name = new_pair(USER)
    unlimited = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    limits = unlimited | {"wildcards": True}
    operator_jwt = _jwt(operator, operator_name, operator_name, {"type": "operator", "system_account": system_name})
    account_jwt = _jwt(operator, operator_name, account_name, {"type": "account", "limits": limits | stored})
    system_jwt = _jwt(operator, operator_name, system_name, {"type": "account", "limits": limits})
    user_jwt = _jwt(account, account_name, user_name, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    creds = folder / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed}\n------END USER NKEY SEED------\n"
    )
    preload = f"{account_name}: {account_jwt}\n{system_name}: {system_jwt}"
    return f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}", creds


def _jwt(signer: nkeys.KeyPair, issuer: str, subject: str, nats: dict[str, Any]) -> str:
    claims = {
        "jti": subject,
        "iat": int(time.time()) - 60,
        "iss": issuer,
        "name": "test",
        "sub": subject,
        "nats": nats | {"version": 2},
    }
    parts = [_encode(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    body = ".".join(parts)
    return f"{body}.{_encode(signer.sign(body.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A CA, and a certificate with its key for 127.0.0.1, by openssl."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    certificate, key, request = folder / "server.pem", folder / "server.key", folder / "server.csr"
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
    new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    sign = ("openssl", "x509", "-req", "-days", "2", "-in", str(request), "-CA", str(ca))
    for command in (
        (*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", str(ca_key), "-out", str(ca)),
        (*new, "-subj", "/CN=server", "-keyout", str(key), "-out", str(request)),
        (*sign, "-CAkey", str(ca_key), "-CAcreateserial", "-extfile", str(names), "-out", str(certificate)),
    ):
        subprocess.run(command, check=True, capture_output=True)
    return ca, certificate, key
