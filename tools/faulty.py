"""Runs a `dipaco` command line that kills or stops itself at a named point of `driver.py`.

python tools/faulty.py '{"where": "inside steps", "kind": "train", ...}' worker --run DIR
"""

import json
import sys
from pathlib import Path
from typing import Any

from driver import Fault

import dipaco.cli.main

if __name__ == "__main__":
    fault: dict[str, Any] = json.loads(sys.argv[1])
    Fault(**{**fault, "marker": Path(fault["marker"])}).put_in()
    sys.exit(dipaco.cli.main.main(sys.argv[2:]))
