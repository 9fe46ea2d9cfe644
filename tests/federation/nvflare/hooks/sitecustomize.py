"""Changes processes of a federation for tests: with this folder on PYTHONPATH, Python imports this
file first.

PMTL_TEST_FOLDER: see `misbehaviour.py`. PMTL_TEST_KILL ends the job's process by SIGKILL between
charge and noise, once: it is `ROUND:FILE`; the file is written first, and where it is
there nothing happens.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def _dies_once(round: int, file: Path) -> None:
    from pmtl.federation import coordinator

    class Server(coordinator.Server):
        def __init__(self, *given, source, **more):
            def words(number):
                if number == round and not file.exists():
                    file.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return source(number)

            super().__init__(*given, source=words, **more)

    coordinator.Server = Server


if "PMTL_TEST_KILL" in os.environ and b"runner_process" in Path("/proc/self/cmdline").read_bytes():
    number, _, path = os.environ["PMTL_TEST_KILL"].partition(":")
    _dies_once(int(number), Path(path))

if "PMTL_TEST_FOLDER" in os.environ:
    sys.path.append(str(Path(__file__).parents[1]))
    import misbehaviour

    misbehaviour.begin(sys.orig_argv)
