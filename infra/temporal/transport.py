"""How the configured Temporal server is spoken to: TLS, client certificates and API keys.

They are read as the SDK's environment configuration has them: from its variables, TEMPORAL_TLS
and others, and from a profile of its file. Invariants: which server it is, the project's settings
tell; the embedded one is spoken to in plain; no message has a key.
"""

import os
import re
import ssl
from pathlib import Path
from typing import Any

from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS

from mainspring.config.settings import Settings
from mainspring.errors import ConfigError, TemporalError

_YES_OR_NO = ("true", "false", "1", "0")
_CA = "TEMPORAL_TLS_SERVER_CA_CERT_PATH"
_PAIR = "TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
_MEANINGS = (
    (
        "UnknownIssuer|UnknownCA|CaUsedAsEndEntity",
        "its certificate comes from an authority that is not known here",
        f"set {_CA} to the file of the server's own authority",
    ),
    ("Expired", "its certificate has expired", "renew the server's certificate"),
    ("NotValidYet", "its certificate is not valid yet", "set the clocks of both machines"),
    (
        "NotValidForName",
        "its certificate names another host",
        "set TEMPORAL_TLS_SERVER_NAME to a name that the certificate has",
    ),
    (
        "InvalidContentType|CorruptMessage",
        "it speaks no TLS, and TEMPORAL_TLS, a certificate or a key asks for it",
        "unset TEMPORAL_TLS and TEMPORAL_API_KEY, or switch TLS on at the server",
    ),
    (
        "alert: ",
        "it refused the client's certificate",
        f"set {_PAIR} to files that its authority signed",
    ),
    (
        "Unauthenticated|PermissionDenied",
        "it refused the key or the certificate",
        f"check TEMPORAL_API_KEY, or {_PAIR}, and that they may use this namespace",
    ),
    (
        "(?i)private key|client cert|invalid pem|keymismatch",
        "the client's certificate and key cannot be used",
        f"check {_PAIR}",
    ),
)
"""Text of the SDK, its meaning, and the remedy; the first that fits."""
_CUT = (
    "error after connection.*(?:transport error|stream closed|peer closed)|operation was canceled"
)
"""The server took the connection and ended it at the first call; in the second words where the end
comes before the call was sent."""


def transport(settings: Settings) -> dict[str, Any]:
    """Arguments of connecting a client, beside its address and namespace. Raises ConfigError."""
    if settings.temporal_is_embedded:
        return {"tls": False}
    _check_variables()
    try:
        profile = ClientConfigProfile.load()
        _check(profile, settings.temporal_address)
        config = profile.to_client_connect_config()
    except OSError as error:
        raise ConfigError(
            f"Temporal's client configuration names a file that cannot be read: {error}",
            remedy=f"check {_CA}, {_PAIR}, and the file of TEMPORAL_PROFILE",
        ) from None
    except RuntimeError as error:  # the SDK's own ConfigError is not public
        raise ConfigError(
            f"Temporal's client configuration cannot be used: {error}",
            remedy="check the variables TEMPORAL_* and the file that TEMPORAL_CONFIG_FILE names",
        ) from None
    return {
        "api_key": config.get("api_key") or None,
        "tls": config.get("tls", False),
        "rpc_metadata": config.get("rpc_metadata", {}),
    }


def unanswered(settings: Settings, error: Exception) -> TemporalError:
    """Meaning of the SDK's `error` at connecting, and what to do."""
    message = str(error)
    address = settings.temporal_address
    for pattern, meaning, remedy in _MEANINGS:
        if re.search(pattern, message):
            return TemporalError(f"Temporal at {address} cannot be used: {meaning}", remedy=remedy)
    if re.search(_CUT, message, re.DOTALL):
        if transport(settings)["tls"]:
            return TemporalError(
                f"Temporal at {address} ended the connection after the TLS handshake, as one does "
                "that wants another client certificate",
                remedy=f"set {_PAIR} to files that its authority signed and that have not expired",
            )
        return TemporalError(
            f"Temporal at {address} ended the connection at the first call, as one does that "
            "speaks TLS",
            remedy=f"set TEMPORAL_TLS=true, and {_CA} where its authority is a private one; or "
            "check that it is Temporal's gRPC port",
        )
    return TemporalError(
        f"Temporal at {address} does not answer: {_in_short(error)}",
        remedy="run `mainspring status`; `mainspring up` starts the embedded server",
    )


def _check_variables() -> None:
    """Refuse variables that the SDK would pass over in silence. Raises ConfigError."""
    for name in ("TEMPORAL_TLS", "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION"):
        value = os.environ.get(name, "").lower()
        if value and value not in _YES_OR_NO:
            raise ConfigError(f"{name}={value} is not true or false", remedy="set it to true")
    if os.environ.get("TEMPORAL_TLS_DISABLE_HOST_VERIFICATION", "").lower() in ("true", "1"):
        raise ConfigError(
            "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION cannot be had: the SDK always verifies",
            remedy="unset it, and set TEMPORAL_TLS_SERVER_NAME to a name that the certificate has",
        )
    file = os.environ.get("TEMPORAL_CONFIG_FILE", "")
    if file and not Path(file).exists():
        raise ConfigError(
            f"TEMPORAL_CONFIG_FILE names {file}, which is not there", remedy="make it, or unset it"
        )


def _check(profile: ClientConfigProfile, address: str) -> None:
    """Raises ConfigError, OSError."""
    secret = profile.api_key or profile.tls or profile.grpc_meta
    if secret and profile.address and profile.address != address:
        raise ConfigError(
            f"Temporal's client configuration is that of {profile.address}, and "
            f"MAINSPRING_TEMPORAL_ADDRESS is {address}: its key is for another server",
            remedy="name the same address in both, or choose a profile by TEMPORAL_PROFILE",
        )
    tls = profile.tls or ClientConfigTLS()
    if tls.disabled and profile.api_key:
        raise ConfigError(
            "TEMPORAL_API_KEY with TEMPORAL_TLS=false would send the key unencrypted",
            remedy="unset TEMPORAL_TLS",
        )
    if bool(tls.client_cert) != bool(tls.client_private_key):
        raise ConfigError(
            "Temporal's client certificate and its key belong together, and one is missing",
            remedy=f"set {_PAIR}",
        )
    authority = tls.server_root_ca_cert
    if isinstance(authority, Path):
        authority = authority.read_bytes()
    if authority:
        text = authority if isinstance(authority, str) else authority.decode(errors="replace")
        try:
            ssl.create_default_context(cadata=text)
        except ssl.SSLError:
            raise ConfigError(
                "the certificate of Temporal's authority cannot be read as PEM",
                remedy=f"set {_CA} to a file that begins with BEGIN CERTIFICATE",
            ) from None


def _in_short(error: Exception) -> str:
    """The operating system's words; the SDK wraps them in its own types."""
    match = re.search(r'message: "([^"]+)"', str(error))
    return match[1] if match else str(error) or type(error).__name__
