"""A virtual environment for every peer, with exact versions.

    python benchmarks/peers/environments.py [NAME …]

Each is made once, in `.environments/NAME`, from `requirements-NAME.txt`, by pip and from wherever
pip is set up to install from. Another interpreter than the one that runs this: `--python`.

    python benchmarks/peers/environments.py pfl fedjax --into DIR --version 3.12

For a machine where nothing can be installed and which has PyTorch, JAX and NumPy: what else the
peers need, in DIR/NAME, to be carried there (`run.py --packages DIR`).
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
#: What a machine with a graphics card has by itself, in versions that suit its card: these, and
#: what PyTorch brings.
THERE = ("jax", "jaxlib", "ml_dtypes", "numpy", "scipy", "setuptools", "torch", "wheel")
THERE += ("filelock", "fsspec", "Jinja2", "MarkupSafe", "mpmath", "networkx", "sympy")
THERE += ("typing_extensions",)
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
    _run(name, [python, "-m", "venv", str(place)])
    _run(name, [str(found), "-m", "pip", "install", "--quiet", "-r", str(requirements)])
    stamp.write_text(wanted, encoding="ascii")
    return found


def carried(name: str, folder: Path, version: str) -> Path:
    """A peer's packages for another machine's interpreter, but for what is there already."""
    lines = (HERE / f"requirements-{name}.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line.partition("==")[0] not in THERE and line[:1] != "#"]
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    options = ["--no-deps", "--only-binary=:all:", "--python-version", version]
    _run(name, [sys.executable, "-m", "pip", "install", "--target", str(place), *options, *wanted])
    return place


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Installing {name} took more than {PATIENCE} seconds.") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise RuntimeError(f"Installing {name} failed: {' '.join(words)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(PEERS)}; all unless given")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--into", type=Path, help="a folder for packages to be carried")
    parser.add_argument("--version", default="3.12", help="of the interpreter there")
    given = parser.parse_args()
    for name in given.names or PEERS:
        if name not in PEERS:
            parser.error(f"there is no peer {name!r}: choose from {', '.join(PEERS)}")
        print(
            carried(name, given.into, given.version)
            if given.into
            else environment(name, given.python)
        )


if __name__ == "__main__":
    main()
