"""With this folder on PYTHONPATH, Python imports this file first: see `misbehaviour.py`."""

import os
import sys
from pathlib import Path

if "PMTL_TEST_FOLDER" in os.environ:
    sys.path.append(str(Path(__file__).parents[1]))
    import misbehaviour

    misbehaviour.begin(sys.orig_argv)
