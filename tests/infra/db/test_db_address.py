"""A postgresql:// URL with each of libpq's parameters: passed on, done or refused by name."""

from pathlib import Path

import pytest

from infra.db.address import place, read_address
from infra.tcp import KeepAlive
from mainspring.errors import ConfigError

AT = "postgresql://me:pw@h:6432/d"
SECRET = "hunter2"


def test_spellings_of_the_place() -> None:
    read = read_address("postgres://h/d")
    assert (read.hosts, read.database, read.user) == ((("h", 5432),), "d", None)
    read = read_address("postgresql://me%40srv:p%2Fw%3F@[::1]:6432/a%20b")
    assert (read.user, read.password, read.database) == ("me@srv", "p/w?", "a b")
    assert read.hosts == (("::1", 6432),)
    assert read.name == "[::1]:6432/a b"
    assert read_address("postgresql://u:p/w@h/d").password == "p/w"
    several = read_address("postgresql://h1:1,h2,[::2]:3/d")
    assert several.hosts == (("h1", 1), ("h2", 5432), ("::2", 3))
    named = read_address("postgresql:///?host=h1,h2&port=1,2&user=u&password=a+b&dbname=d")
    assert named.hosts == (("h1", 1), ("h2", 2))
    assert (named.user, named.password, named.database) == ("u", "a+b", "d")
    at_socket = read_address("postgresql://me@/d?host=/var/run/postgresql&port=6000")
    assert at_socket.hosts == (("/var/run/postgresql", 6000),)
    assert read_address("postgresql://%2Frun%2Fpg/d").hosts == (("/run/pg", 5432),)
    usual = read_address("postgresql:///d")
    assert usual.hosts == ()
    assert ("localhost", 5432) in usual.tried
    assert usual.name == "localhost:5432/d"


def test_what_the_session_is_given() -> None:
    read = read_address(f"{AT}?options=-c%20search_path%3Dmine&application_name=train")
    assert read.startup == {"application_name": "train", "options": "-c search_path=mine"}
    assert read_address(f"{AT}?fallback_application_name=f").startup["application_name"] == "f"
    assert read_address(AT).keywords()["server_settings"] == {"application_name": "mainspring"}
    assert read_address(f"{AT}?connect_timeout=3").keywords()["timeout"] == 3
    lively = read_address(
        f"{AT}?keepalives_idle=5&keepalives_interval=2&keepalives_count=4&tcp_user_timeout=9000"
    )
    assert lively.keep_alive == KeepAlive(5, 2, 4, 9000)
    assert not read_address(f"{AT}?keepalives=0").keep_alive.on


@pytest.mark.parametrize(
    "mode", ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
)
def test_each_sslmode_reaches_the_driver(mode: str) -> None:
    assert read_address(f"{AT}?sslmode={mode}").driver == {"sslmode": mode}
    assert read_address(f"{AT}?sslmode={mode}").keywords()["dsn"].endswith(f"sslmode={mode}")


def test_files_and_the_rest_of_tls(tmp_path: Path) -> None:
    for name in ("ca", "crt", "key", "crl", "pass"):
        (tmp_path / name).touch()
    query = {
        "sslmode": "verify-full",
        "sslrootcert": f"{tmp_path}/ca",
        "sslcert": f"{tmp_path}/crt",
        "sslkey": f"{tmp_path}/key",
        "sslcrl": f"{tmp_path}/crl",
        "passfile": f"{tmp_path}/pass",
        "sslpassword": SECRET,
        "sslnegotiation": "direct",
        "ssl_min_protocol_version": "TLSv1.2",
        "ssl_max_protocol_version": "TLSv1.3",
        "target_session_attrs": "read-write",
        "krbsrvname": "pg",
        "gsslib": "gssapi",
    }
    read = read_address(f"{AT}?" + "&".join(f"{name}={value}" for name, value in query.items()))
    assert read.driver == query
    assert SECRET not in repr(read) and "pw" not in repr(read)
    assert read_address(f"{AT}?ssl=true").driver == {"sslmode": "require"}
    assert read_address(f"{AT}?sslrootcert=system").driver["sslmode"] == "verify-full"


@pytest.mark.parametrize(
    "query",
    [
        *("channel_binding=prefer", "gssencmode=disable", "sslsni=1", "sslcompression=0"),
        *("client_encoding=UTF8", "load_balance_hosts=disable", "sslcertmode=allow"),
        *("max_protocol_version=latest", "min_protocol_version=3.0", "sslcert=", "replication=no"),
        "gssdelegation=0",
    ],
)
def test_what_asks_for_nothing_is_taken(query: str) -> None:
    assert read_address(f"{AT}?{query}").driver == {}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("channel_binding=require", "channel_binding=require"),
        ("gssencmode=require", "gssencmode=require"),
        ("sslmode=maybe", "sslmode=maybe"),
        ("sslsni=0", "sslsni=0"),
        ("sslcompression=1", "sslcompression=1"),
        ("client_encoding=LATIN1", "client_encoding=LATIN1"),
        ("load_balance_hosts=random", "load_balance_hosts=random"),
        ("sslcertmode=require", "sslcertmode=require"),
        ("target_session_attrs=standby", "target_session_attrs=standby"),
        ("ssl_min_protocol_version=SSLv3", "ssl_min_protocol_version=SSLv3"),
        ("sslnegotiation=later", "sslnegotiation=later"),
        ("sslrootcert=/none/ca.pem", "sslrootcert"),
        ("sslcert=/none/me.crt", "sslcert"),
        ("passfile=/none/pass", "passfile"),
        ("sslmode=require&sslrootcert=system", "sslrootcert=system"),
        ("hostaddr=10.0.0.1", "hostaddr"),
        ("sslcrldir=/x", "sslcrldir"),
        ("sslkeylogfile=/x", "sslkeylogfile"),
        ("require_auth=scram-sha-256", "require_auth"),
        ("requirepeer=postgres", "requirepeer"),
        ("replication=database", "replication=database"),
        ("min_protocol_version=3.2", "min_protocol_version=3.2"),
        ("scram_client_key=x", "scram_client_key"),
        ("scram_server_key=x", "scram_server_key"),
        ("oauth_issuer=x", "oauth_issuer"),
        ("oauth_client_secret=hunter2", "oauth_client_secret"),
        ("connect_timeout=0", "connect_timeout"),
        ("connect_timeout=soon", "connect_timeout"),
        ("keepalives_idle=x", "keepalives_idle"),
        ("port=x", "port"),
        ("service=none&servicefile=/none", "service"),
        ("pgbouncer=true", "pgbouncer"),
        ("sslmod=require", "sslmod"),
        ("sslmode", "sslmode"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_address(f"postgresql://me:{SECRET}@h/d?{query}")
    assert f"URL's {named} cannot be used" in refused.value.message
    assert refused.value.remedy
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("", "sqlite:///x.db", "http://127.0.0.1:5432", "not a url"),
        *(f"postgresql://me:{SECRET}?x=y@h/d", f"postgresql://me:12?{SECRET}@h/d"),
        f"postgresql://me:{SECRET}:x/d",
    ],
)
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_address(url)
    assert SECRET not in str(refused.value)
    assert "postgresql://" in str(refused.value) or "host:port" in str(refused.value)


def test_a_place_shows_no_secret() -> None:
    url = f"postgresql://me@h/d?password={SECRET}&sslpassword={SECRET}"
    assert place(url) == "h:5432/d"
    assert SECRET not in place(url + "&sslmode=maybe")
    assert place("") == ""


def test_a_service_gives_what_the_url_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "services"
    file.write_text("[mine]\nhost=h9\nport=9\ndbname=d9\nuser=u9\npassword=p%9\nsslmode=require\n")
    read = read_address(f"postgresql:///mydb?service=mine&servicefile={file}")
    assert (read.hosts, read.database, read.user) == ((("h9", 9),), "mydb", "u9")
    assert (read.password, read.driver) == ("p%9", {"sslmode": "require"})
    with pytest.raises(ConfigError, match="service"):
        read_address(f"postgresql:///mydb?service=other&servicefile={file}")
