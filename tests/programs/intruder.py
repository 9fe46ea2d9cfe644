"""What intruders try, each in a process of its own: `python intruder.py WHAT KIT`.

It prints what came back; the tests read that and the server's log.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def knock(kit: Path, certificate: Path | None) -> str:
    """Open a TLS connection to the server, with a certificate or without, and try to read."""
    known = json.loads((kit / "startup/fed_client.json").read_text())
    host, port = known["servers"][0]["service"]["target"].split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(kit / "startup/rootCA.pem")
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain) as secure,
        ):
            secure.sendall(b"\0" * 64)
            return f"read {len(secure.recv(64))} bytes"
    except OSError as error:
        return f"refused: {error}"


def claim(kit: Path, name: str) -> None:
    """Run a site's process with another site's name."""
    from pmtl.federation.nvflare import process

    process._name = lambda _: name
    threading.Timer(120, lambda: process.os._exit(0)).start()
    process.run(kit, None)


def reach_out(kit: Path) -> None:
    """A site that does what it may not: it writes to another site, maintains the network, and says
    that its message is of the server."""
    from nvflare.apis.event_type import EventType
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message

    from pmtl.federation.nvflare import process, site

    def attack(cell: Any) -> None:
        time.sleep(1)
        tries = (("b", "pmtl", "ask"), ("b", "pmtl", "ping"), ("server", "_net_manager", "stop"),
                 ("b", "_net_manager", "stop_cell"))  # fmt: skip
        for target, channel, topic in tries:
            request = {"channel": channel, "topic": topic, "target": target, "timeout": 0.5}
            reply = cell.core_cell.send_request(request=Message({}, b"x"), **request)
            print(
                target,
                channel,
                topic,
                (reply.headers or {}).get(MessageHeaderKey.RETURN_CODE),
                flush=True,
            )
        forged = Message({}, b"x")
        send = cell.core_cell._send_to_endpoint

        def forge(endpoint: Any, message: Any, *more: Any) -> Any:
            if message.get_header(MessageHeaderKey.CHANNEL) == "pmtl":
                message.set_header(MessageHeaderKey.ORIGIN, "server.job")
            return send(endpoint, message, *more)

        cell.core_cell._send_to_endpoint = forge
        request = {"channel": "pmtl", "topic": "ask", "target": "b", "timeout": 0.5}
        reply = cell.core_cell.send_request(request=forged, **request)
        print("forged", (reply.headers or {}).get(MessageHeaderKey.RETURN_CODE), flush=True)
        process.os._exit(0)

    handle = site.SiteComponent.handle_event

    def handle_event(self: Any, event_type: str, fl_ctx: Any) -> None:
        handle(self, event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            cell = fl_ctx.get_engine().get_cell()
            threading.Thread(target=attack, args=(cell,), daemon=True).start()

    site.SiteComponent.handle_event = handle_event
    process.run(kit, None)


def administer(kit: Path) -> None:
    """An administrator who asks for more than the role allows."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from pmtl.federation.nvflare.job import write_job
    from pmtl.federation.nvflare.policy import ADMIN

    session = new_secure_session(ADMIN, str(kit), timeout=20.0)
    job = {"name": "bad", "echo": {"bytes": 1, "rounds": 1, "deadline": 1}}

    def submit(change: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            made = write_job(job, Path(folder))
            change(made)
            return session.submit_job(str(made))

    def with_code(made: Path) -> None:
        (made / "app/custom").mkdir()
        (made / "app/custom/evil.py").write_text("raise SystemExit\n")

    def with_class(made: Path) -> None:
        file = made / "app/config/config_fed_server.json"
        config = json.loads(file.read_text())
        config["workflows"][0]["path"] = "nvflare.app_common.workflows.fedavg.FedAvg"
        file.write_text(json.dumps(config))

    def with_component(made: Path) -> None:
        file = made / "app/config/config_fed_server.json"
        config = json.loads(file.read_text())
        config["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["id"]}}]
        file.write_text(json.dumps(config))

    tries = {
        "code": lambda: submit(with_code),
        "class": lambda: submit(with_class),
        "component": lambda: submit(with_component),
        "shell at the server": lambda: session.ls_target("server"),
        "shell at a site": lambda: session.cat_target("b", file="log.txt"),
        "shutdown": lambda: session.do_command("shutdown all"),
        "site's log": lambda: session.do_command("configure_site_log client b DEBUG"),
        "network": lambda: session.do_command("change_root tcp://localhost:1"),
        "sites' status": lambda: session.do_command("check_status client b"),
    }
    for what, attempt in tries.items():
        try:
            print(f"{what}: {attempt()!r}", flush=True)
        except Exception as error:
            print(f"{what}: {type(error).__name__} {error}", flush=True)
    session.close()
    sys.stdout.flush()


if __name__ == "__main__":
    what, kit = sys.argv[1], Path(sys.argv[2])
    if what == "knock":
        print(knock(kit, Path(sys.argv[3]) if len(sys.argv) > 3 else None))
    elif what == "claim":
        claim(kit, sys.argv[3])
    elif what == "reach-out":
        reach_out(kit)
    else:
        administer(kit)
