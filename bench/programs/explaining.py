"""Run a program with kcache and time what explaining its misses takes: `python explaining.py train.py`.

The program prints its own line first; the line printed here holds the seconds inside `Session.missed` and the calls.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from typing import Any

from kcache.hooks.session import Session


def main(program: str) -> None:
    """Run `program` as if it had been started by itself, with kcache."""
    missed, taken = Session.missed, []

    def timed(self: Session, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        missed(self, *args, **kwargs)
        taken.append(time.perf_counter() - start)

    Session.missed = timed  # type: ignore[method-assign]
    sys.argv = [program, "kcache"]
    runpy.run_path(program, run_name="__main__")
    print(json.dumps({"explained_s": sum(taken), "explained": len(taken)}))


if __name__ == "__main__":
    main(sys.argv[1])
