"""Which hosts an allow-list lets through."""

import pytest

from mainspring.errors import UsageError
from mainspring.tasks.allow_list import AllowList


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("pypi.org:443", "pypi.org", 443, True),
        ("pypi.org:443", "PyPI.org.", 443, True),
        ("pypi.org:443", "pypi.org", 80, False),
        ("pypi.org:443", "evil-pypi.org", 443, False),
        ("pypi.org:443", "files.pypi.org", 443, False),
        (".pypi.org:443", "files.pypi.org", 443, True),
        (".pypi.org:443", "pypi.org", 443, True),
        (".pypi.org:443", "evilpypi.org", 443, False),
        ("10.0.0.7:8080", "10.0.0.7", 8080, True),
        ("10.0.0.7:8080", "10.0.0.70", 8080, False),
        ("[fd00::7]:80", "fd00:0::7", 80, True),
    ],
)
def test_what_is_allowed(entry: str, host: str, port: int, allowed: bool) -> None:
    assert AllowList.parse([entry]).allows(host, port) is allowed


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("pypi.org", "151.101.0.223", True),
        ("mirror.internal", "10.0.0.7", True),
        ("pypi.org", "127.0.0.1", False),
        ("pypi.org", "::1", False),
        ("pypi.org", "::ffff:127.0.0.1", False),
        ("pypi.org", "169.254.169.254", False),
        ("pypi.org", "0.0.0.0", False),
        ("pypi.org", "224.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_no_name_leads_into_the_node(host: str, address: str, allowed: bool) -> None:
    assert AllowList(()).allows_address(host, address) is allowed


@pytest.mark.parametrize(
    "entry", ["", "pypi.org", "pypi.org:", "pypi.org:0", "pypi.org:99999", "a b:80", "*:443", ":80"]
)
def test_what_cannot_be_meant_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="write host:port"):
        AllowList.parse([entry])
