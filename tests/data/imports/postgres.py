"""A PostgreSQL server of a test's own: in a temporary folder, on a socket there, gone when the test ends."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "s3cret/of the:bank"


@contextmanager
def server() -> Iterator[Path]:
    """Give the folder of the socket of a running server whose users must show a password, or skip with a reason."""
    programs = {name: shutil.which(name) for name in ("initdb", "pg_ctl", "postgres")}
    absent = sorted(name for name, path in programs.items() if path is None)
    if absent:
        pytest.skip(f"no PostgreSQL server on this machine: {', '.join(absent)} not on the PATH")
    user = _other_user() if os.getuid() == 0 else None
    # Not the test's own folder: its path may be too long for a socket, and closed to the server's user.
    place = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        (place / "password").write_text(PASSWORD)
        if user is not None:
            for path in (place, place / "password"):
                os.chown(path, user.pw_uid, user.pw_gid)

        def as_user(*words: str) -> None:
            done = subprocess.run(
                words,
                cwd=place,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(place)},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stdout + done.stderr

        data = str(place / "data")
        as_user(
            str(programs["initdb"]),
            *("-D", data, "-U", "keeper", "--auth=scram-sha-256", "--pwfile", str(place / "password"), "--no-sync"),
            *("--encoding=UTF8", "--locale=C"),
        )
        options = f"-c listen_addresses='' -c unix_socket_directories='{place}' -c fsync=off"
        as_user(str(programs["pg_ctl"]), "-D", data, "-l", str(place / "log"), "-o", options, "-w", "start")
        try:
            yield place
        finally:
            as_user(str(programs["pg_ctl"]), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _other_user() -> pwd.struct_passwd:
    """Return somebody who is not root, as whom root may run the server."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
