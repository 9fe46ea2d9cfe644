"""A virtual environment for every peer, with exact versions.

    python benchmarks/peers/environments.py [NAME …]

Each is made once, in `.environments/NAME`, from `requirements-NAME.txt`, by pip and from wherever
pip is set up to install from. Another interpreter than the one that runs this: `--python`.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEERS = ("pfl", "flower", "fedjax")
#: Seconds that one environment may take to install.
PATIENCE = 1800


def environment(name: str, python: str = sys.executable) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there or has other
    versions. Raises RuntimeError with the end of pip's own words."""
    place = HERE / ".environments" / name
    requirements = HERE / f"requirements-{name}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp, found = place / "installed", place / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return found
    shutil.rmtree(place, ignore_errors=True)
    print(f"installing {name} into {place.relative_to(HERE)} …", file=sys.stderr, flush=True)
    for command in (
        [python, "-m", "venv", str(place)],
        [str(found), "-m", "pip", "install", "--quiet", "-r", str(requirements)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"Installing {name} took more than {PATIENCE} seconds.") from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()[-5:]
            raise RuntimeError(f"Installing {name} failed: {' '.join(words)}")
    stamp.write_text(wanted, encoding="ascii")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(PEERS)}; all unless given")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    for name in given.names or PEERS:
        if name not in PEERS:
            parser.error(f"there is no peer {name!r}: choose from {', '.join(PEERS)}")
        print(environment(name, given.python))


if __name__ == "__main__":
    main()
