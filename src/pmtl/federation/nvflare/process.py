"""The server's or a site's NVFLARE process, without NVFLARE's shell scripts.

`python -m pmtl.federation.nvflare.process KIT` is the process itself; `supervise` starts it, starts
it again after a crash, and ends it with all its children.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.nvflare import require_nvflare
from pmtl.federation.nvflare.kits import check_certificate
from pmtl.federation.nvflare.policy import SITE_FILE, role_of, server_address, write_policy
from pmtl.storage import exclusive

_GRACE = 15.0  # Seconds that a process has to end by itself.
_CONFIG_ERROR = 2  # The status of a process that cannot start and has said why.
CRASHES, _WITHIN = 5, 300.0  # Give up after 5 crashes within 300 seconds.


def supervise(kit: Path, say: Callable[[str], None]) -> None:
    """Run a server's or a site's process until Ctrl-C or SIGTERM; start it again when it crashes.
    `say` is called with sentences on what happens."""
    require_nvflare()
    if sentence := check_certificate(kit):
        say(sentence)
    with exclusive(kit / ".lock"):
        if role_of(kit) == "server":
            _check_port(kit)
        write_policy(kit)
        _keep_running(kit, say)


def _check_port(kit: Path) -> None:
    """Refuse a port that is in use: NVFLARE would retry forever."""
    host, port = server_address(kit)
    local = host == "localhost" or host.startswith("127.")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1" if local else "", port))
        except OSError as error:
            raise PmtlError(
                f"The server cannot listen on port {port} ({error.strerror}): end what uses it."
            ) from error


def _keep_running(kit: Path, say: Callable[[str], None]) -> None:
    asked = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: asked.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    crashes: list[float] = []
    try:
        while not asked.is_set():
            child = _start(kit)
            while child.poll() is None and not asked.wait(0.2):
                pass
            if asked.is_set():
                break
            if child.returncode == _CONFIG_ERROR:
                sys.exit(_CONFIG_ERROR)  # It has said what is wrong.
            _end(child)  # Its children, if it left any.
            now = time.monotonic()
            crashes = [*(t for t in crashes if now - t < _WITHIN), now]
            log = kit / "log.txt"
            if len(crashes) >= CRASHES:
                raise PmtlError(
                    f"The process ended {CRASHES} times within {_WITHIN:g} seconds, at last with "
                    f"status {child.returncode}: read {log}."
                )
            say(f"The process ended with status {child.returncode} ({log}); it starts again.")
            asked.wait(2.0 ** len(crashes) / 2)
    finally:
        if "child" in locals():
            _end(child)
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(kit: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", __name__, str(kit), "--parent", str(os.getpid())]
    # Threads with memory of their own would keep several times the size of a large message.
    environment = {"MALLOC_ARENA_MAX": "2", **os.environ}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and all its children: with SIGTERM, and after a while with SIGKILL."""
    import psutil

    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(child.pid).children(recursive=True)
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for process in psutil.wait_procs(family, timeout=3)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def run(kit: Path, parent: int | None) -> int:
    """Run NVFLARE for a server's or a site's kit in this process. It ends when `parent`, the
    process that started it, ends."""
    server = role_of(kit) == "server"
    end = partial(_exit, _stop_jobs, _GRACE - 3.0) if server else partial(_exit, _leave, 3.0)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent, end), daemon=True).start()
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    arguments = argparse.Namespace(workspace=str(kit.resolve()), local_rank=0)
    arguments.set = ["secure_train=true", "org=pmtl", "config_folder=config"]
    if server:
        arguments.fed_server = "fed_server.json"
        main = _server_main()
    else:
        arguments.fed_client = "fed_client.json"
        arguments.set += [f"uid={_name(kit)}", "heart_beat_interval=4"]
        main = _site_main(kit)
    return int(MainProcessMonitor.run(main, run_dir=arguments.workspace, args=arguments) or 0)


def _server_main() -> Any:
    """NVFLARE's server, with two of its functions changed; its version is pinned."""
    from nvflare.fuel.f3.cellnet.net_manager import NetManager
    from nvflare.fuel.hci.reg import CommandModuleSpec
    from nvflare.private.fed.app.server.server_train import main
    from nvflare.private.fed.server import job_runner

    replies = job_runner.check_client_replies
    # No site gets a part of the job, which NVFLARE takes for a failure.
    job_runner.check_client_replies = lambda client_sites, **more: (
        replies(client_sites=client_sites, **more) if client_sites else []
    )
    # These commands inspect and stop the network, and NVFLARE does not ask who may give them.
    NetManager.get_spec = lambda self: CommandModuleSpec(name="cellnet", cmd_specs=[])
    return main


def _site_main(kit: Path) -> Any:
    """NVFLARE's client without its commands, which deploy apps, start them and use a shell: the
    server alone would decide whether a command is authorised."""
    from nvflare.private.fed.app.client import client_train

    from pmtl.federation.nvflare.site import HANDLERS, retry_until_admitted

    retry_until_admitted()
    if (kit / SITE_FILE).is_file():  # Without it, the site can only echo.
        from pmtl.federation.service import open_site

        HANDLERS.append(open_site(kit, _name(kit)))
    agent = client_train.create_admin_agent
    client_train.create_admin_agent = lambda _, client, engine: agent([], client, engine)
    return client_train.main


def _name(kit: Path) -> str:
    """The name in a site's certificate."""
    from nvflare.fuel.f3.cellnet.identity import get_cert_common_name_from_file

    return str(get_cert_common_name_from_file(str(kit / "startup/client.crt")))


def _exit(task: Callable[[], None], seconds: float) -> None:
    """Run a task for at most `seconds`, then end this process."""
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(seconds)
    os._exit(0)


def _leave() -> None:
    for client in _loaded("site", "CLIENTS"):
        client.close()


def _stop_jobs() -> None:
    for engine in _loaded("guard", "ENGINES"):
        for job in list(engine.run_processes):
            engine.abort_app_on_server(job)
        while engine.run_processes:
            time.sleep(0.1)


def _loaded(module: str, name: str) -> list[Any]:
    """A list of a module of this folder, empty if the module is not loaded. Importing here could
    deadlock: at start-up another thread imports the same modules."""
    found = sys.modules.get(f"{__package__}.{module}")
    return list(getattr(found, name, ()))


def _exit_with_parent(parent: int, end: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    end()


def _main() -> int:
    parser = argparse.ArgumentParser(description="NVFLARE's process of a kit.")
    parser.add_argument("kit", type=Path)
    parser.add_argument("--parent", type=int)
    asked = parser.parse_args()
    try:
        return run(asked.kit, asked.parent)
    except PmtlError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return _CONFIG_ERROR


if __name__ == "__main__":
    sys.exit(_main())
