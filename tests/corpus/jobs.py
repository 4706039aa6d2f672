"""Functions run each in a process of its own, a few at a time.

A forked process starts with torch and Triton loaded and nothing of any package. A job that
dies takes nothing with it: its result says so.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

WORKERS = 2


class Lost(NamedTuple):
    """In place of the result of a job that raised or died."""

    why: str


def run(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], method: str = "fork") -> list[Any]:
    """`function(*a)` for each `a` of `arguments`, in order. `method` is that of `multiprocessing`."""
    context = multiprocessing.get_context(method)
    results: dict[int, Any] = {}
    open_: dict[Connection, tuple[int, Any]] = {}
    todo = list(enumerate(arguments))
    while todo or open_:
        while todo and len(open_) < WORKERS:
            number, given = todo.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_answer, args=(theirs, function, given))  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            open_[ours] = (number, process)
        for ready in wait(list(open_)):
            number, process = open_.pop(ready)  # type: ignore[arg-type]
            try:
                results[number] = ready.recv()  # type: ignore[union-attr]
            except EOFError:
                process.join()
                results[number] = Lost(f"the process died with status {process.exitcode}")
            process.join()
    return [results[number] for number in range(len(arguments))]


def _answer(pipe: Connection, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)  # packages warn, and MLIR prints what it refuses
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        pipe.send(function(*given))
    except BaseException:
        pipe.send(Lost(traceback.format_exc()))
