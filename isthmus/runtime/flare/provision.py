"""Provisioning by FLARE: a root certificate, and a certificate and key for every party. No prompts, no scripts."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from isthmus.core.errors import IsthmusError

ORGANISATION = "isthmus"
VALID_DAYS = 3650


def provision(authority: Path, name: str, host: str, port: int, clients: list[str]) -> dict[str, Path]:
    """Make certificates for the server and for every client; the same authority folder keeps the same root.

    Returns, for every party, the folder with rootCA.pem and the party's .crt and .key.
    """
    project = Project(name=name, description="")
    local = sorted({"localhost", "127.0.0.1"} - {host})
    project.set_server(
        "server",
        ORGANISATION,
        {"fed_learn_port": port, "admin_port": port, "default_host": host, "host_names": local},
    )
    for client in clients:
        project.add_client(client, ORGANISATION, {})
    said = io.StringIO()
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            builders = [WorkspaceBuilder(), CertBuilder(root_valid_days=VALID_DAYS)]
            ctx = Provisioner(str(authority), builders).provision(project)
    finally:
        logging.disable(logging.NOTSET)
    if ctx.get(CtxKey.BUILD_ERROR):
        raise IsthmusError(f"provisioning failed: {said.getvalue().strip()[-500:]}")
    made = Path(ctx.get_result_location())
    return {party: made / party / "startup" for party in ("server", *clients)}
