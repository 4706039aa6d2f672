"""Where the lines of the `kcache` logger go when the setting `log` says so; otherwise the program's logging decides.

A level (`info`, `debug`, …) sends them to stderr, bare and there alone, so that a program
that has set up logging does not print them twice. An absolute path has them appended to that
file, all of them, each with time, process and level; any number of processes may share it, as
each line is one write. Warnings then reach stderr or the program's own handlers as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
IN_FILE = "%(asctime)s %(process)d %(levelname)s %(message)s"

log = logging.getLogger("kcache")


def attach(target: str) -> Callable[[], None]:
    """Send the logger's lines to `target`, a level or a path, and return what undoes that; empty changes nothing.

    Raises `ConfigError` if the file cannot be opened. Not thread-safe.
    """
    if not target:
        return lambda: None
    before, handlers = (log.level, log.propagate), _handlers(target)
    log.setLevel(target.upper() if target in LEVELS else logging.DEBUG)
    log.propagate = False
    for handler in handlers:
        log.addHandler(handler)

    def detach() -> None:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]

    return detach


def _handlers(target: str) -> list[logging.Handler]:
    if target in LEVELS:
        return [logging.StreamHandler()]
    try:
        file = logging.FileHandler(target)
    except OSError as error:
        raise ConfigError(f"log = {target!r} cannot be written: {error.strerror}") from error
    file.setFormatter(logging.Formatter(IN_FILE))
    return [file, _Others(log.getEffectiveLevel())]


class _Others(logging.Handler):
    """What the logger would have let through without the file goes where it would have gone."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.root.handle(record)
