"""Entry of a probe's process: python -I main.py PROGRAM ARGUMENTS(JSON) RESULT.

Writes what the program returned to RESULT, then leaves without the interpreter's own shutdown: what the
process group's destructors do is the business of the probes about them.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the program and record its outcome."""
    program, arguments, result = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a terminated probe is a result, not a crash to keep
    sys.path.insert(0, str(HERE))  # -I left the script's folder out; nothing else of the repository is visible
    try:
        outcome, detail = importlib.import_module(program).run(**arguments)
    except BaseException as error:  # noqa: BLE001 - whatever a program dies of is for the runner to show
        outcome, detail = "BROKEN", {"error": repr(error), "traceback": traceback.format_exc()[-1500:]}
    part = result.with_suffix(".part")
    part.write_text(json.dumps({"outcome": outcome, "detail": detail}))
    part.rename(result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


main()
