"""TLS between agents, command line and controller, for networks that are not trusted.

Off by default, since the default is loopback and a token. `HOLDFAST_TLS` names a folder with
`cert.pem` and `key.pem` (needed by the controller) and `ca.pem` (by everybody who dials); with it
set, nothing speaks plain text any more. The certificate has to name the address that is dialled.
"""

import os
import ssl
from pathlib import Path

from holdfast.errors import Error

VARIABLE = "HOLDFAST_TLS"


def scheme() -> str:
    """`wss` with TLS, `ws` without."""
    return "wss" if os.environ.get(VARIABLE) else "ws"


def server_context() -> ssl.SSLContext | None:
    """For the controller. None without TLS. Raises `Error` tls-unusable."""
    folder = _folder()
    if folder is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except OSError as error:  # ssl.SSLError is one
        raise _unusable(folder, "cert.pem and key.pem", error) from error
    return context


def client_context() -> ssl.SSLContext | None:
    """For those who dial. None without TLS. Raises `Error` tls-unusable."""
    folder = _folder()
    if folder is None:
        return None
    try:
        return ssl.create_default_context(cafile=folder / "ca.pem")
    except OSError as error:
        raise _unusable(folder, "ca.pem", error) from error


def _folder() -> Path | None:
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def _unusable(folder: Path, files: str, error: OSError) -> Error:
    return Error(
        "tls-unusable",
        f"cannot use {files} in {folder}",
        why=str(error),
        help=f"put {files} there in PEM form, or unset {VARIABLE}",
    )
