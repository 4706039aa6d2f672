"""The settings of kcache: what each is called, where its value came from, what it means.

A value is taken from the first of

    1. an argument of `Settings.load` (and so of `kcache.enable`),
    2. the environment, `KCACHE_*`,
    3. the default,

and `Settings.origins` says which. The table `SETTINGS` is what the command line and the
documentation print. A value that cannot be used raises `ConfigError`, naming the setting,
the value and its origin; nothing is guessed in its place.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ConfigError
from .filesystem import is_network, type_of
from .logs import LEVELS
from .units import GIB, MIB, parse_size

log = logging.getLogger("kcache")

ARGUMENT, ENVIRONMENT, DEFAULT, FALLBACK = "argument", "environment", "default", "fallback"

MIN_SIZE = 16 * MIB
"""Smallest `max_size`: below it not even one large entry and LMDB's own pages have room."""


def _parse_bool(value: object) -> bool:
    if isinstance(value, (bool, int)):
        return bool(value)
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("expected 1 or 0")


def _parse_link(value: object) -> str:
    if value not in ("auto", "off"):
        raise ValueError("expected auto or off")
    return str(value)


def _parse_names(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
    return tuple(sorted({name.strip() for name in names if name.strip()}))


def _parse_max_size(value: object) -> int:
    size = parse_size(value)  # type: ignore[arg-type]
    if size < MIN_SIZE:
        raise ValueError(f"expected at least {MIN_SIZE} bytes")
    return size


def _parse_dir(value: object) -> Path:
    path = Path(os.path.expanduser(os.fspath(value)))  # type: ignore[call-overload]
    if not path.is_absolute():
        raise ValueError("expected an absolute path")
    return path


def _parse_jobs(value: object) -> int:
    jobs = int(value)  # type: ignore[call-overload]
    if jobs < 0:
        raise ValueError("expected a number of processes, or 0 to follow the machine's cores")
    return jobs


LEAST_SECRET = 16
"""Fewest characters of a signing key: with any tagged entry, a shorter one can be found by trying."""


def _parse_signing_key(value: object) -> bytes:
    """32 bytes that stand for the secret text `value`."""
    if not isinstance(value, str) or len(value.strip()) < LEAST_SECRET:
        raise ValueError(f"expected at least {LEAST_SECRET} characters, such as `openssl rand -hex 32` prints")
    from blake3 import blake3

    return blake3(value.strip().encode(), derive_key_context="kcache v1 signing key").digest()


def _read_signing_key(value: object) -> bytes:
    """The same for the text in the file `value`, which is its owner's alone."""
    path = _parse_dir(value)
    try:
        with open(path, encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_mode & 0o077 or facts.st_uid not in (0, os.getuid()):
                raise ValueError(f"others may read it or own it. Run: chmod 600 {path}")
            return _parse_signing_key(file.read(4096))
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
def _parse_log(value: object) -> str:
    target = os.fspath(value)  # type: ignore[call-overload]
    if target.lower() in ("", *LEVELS):
        return target.lower()
    path = os.path.expanduser(target)
    if not os.path.isabs(path):
        raise ValueError(f"expected {', '.join(LEVELS)} or an absolute path")
    return path


class Setting(NamedTuple):
    """One setting: its name, environment variable, reader, default, one sentence, and whether its value is a secret."""

    id: str
    variable: str
    parse: Callable[[object], Any]
    default: Any
    text: str
    secret: bool = False


SETTINGS = (
    Setting("dir", "KCACHE_DIR", _parse_dir, None, "directory that holds the store"),
    Setting("max_size", "KCACHE_MAX_SIZE", _parse_max_size, 10 * GIB, "the store stays below this size"),
    Setting("enabled", "KCACHE", _parse_bool, True, "0 turns kcache off"),
    Setting("strict", "KCACHE_STRICT", _parse_bool, False, "raise instead of falling back to stock behaviour"),
    Setting("link", "KCACHE_LINK", _parse_link, "auto", "auto: compile kernels from their linked source; off: do not"),
    Setting("key_env", "KCACHE_KEY_ENV", _parse_names, (), "further environment variables that belong to every key"),
    Setting("jobs", "KCACHE_JOBS", _parse_jobs, 0, "processes that compile variants; 0 follows the cores, 1 uses none"),
    Setting(
        *("signing_key", "KCACHE_SIGNING_KEY", _parse_signing_key, None),
        "secret text; entries are tagged with it, and those that are not are refused",
        secret=True,
    ),
    Setting("signing_key_file", "KCACHE_SIGNING_KEY_FILE", _read_signing_key, None, "file that holds the signing key"),
    Setting("log", "KCACHE_LOG", _parse_log, "", "info or debug: say each miss on stderr; a path: append it there"),
)


@dataclass(frozen=True)
class Settings:
    """Every setting, read and checked. `origins` maps a setting's name to where it came from."""

    dir: Path
    max_size: int = 10 * GIB
    strict: bool = False
    enabled: bool = True
    link: str = "auto"
    key_env: tuple[str, ...] = ()
    jobs: int = 0
    signing_key: bytes | None = field(default=None, repr=False)
    log: str = ""
    origins: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Read all settings; an override that is None counts as not given.

        Raises `ConfigError` for an unknown name or a value that cannot be used. Touches the
        disk only to find out whether the default directory can be written.
        """
        unknown = sorted(set(overrides) - {setting.id for setting in SETTINGS})
        if unknown:
            raise ConfigError(f"{unknown[0]} is not a setting of kcache")
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for setting in SETTINGS:
            values[setting.id], origins[setting.id] = _resolve(setting, overrides.get(setting.id), os.environ)
        from_file = values.pop("signing_key_file")
        if from_file is not None:
            if values["signing_key"] is not None:
                raise ConfigError("both signing_key and signing_key_file are set. Set one of them")
            values["signing_key"], origins["signing_key"] = from_file, origins["signing_key_file"]
        if values["dir"] is None:
            values["dir"], origins["dir"] = _default_dir()
        return cls(origins=origins, **values)


def _resolve(setting: Setting, override: Any, environ: Mapping[str, str]) -> tuple[Any, str]:
    if override is not None:
        value, origin, where = override, ARGUMENT, "given as an argument"
    elif environ.get(setting.variable):
        value, origin, where = environ[setting.variable], ENVIRONMENT, f"from {setting.variable} in the environment"
    else:
        return setting.default, DEFAULT
    try:
        return setting.parse(value), origin
    except (ValueError, TypeError) as error:
        shown = "(hidden)" if setting.secret else repr(value)
        raise ConfigError(f"{setting.id} = {shown}, {where}, cannot be used: {error}") from error


_warned: set[str] = set()


def _default_dir() -> tuple[Path, str]:
    """The user cache directory, or a per-user directory under the temporary one if that cannot be written."""
    import platformdirs  # here, since most processes name a directory or import no store at all

    try:
        path = Path(platformdirs.user_cache_dir("kcache", appauthor=False))
    except RuntimeError:
        path = Path("~")
    if not path.is_absolute():  # no HOME, and a user that the machine does not know: a container's
        why = "there is no home directory"
    elif is_network(type_of(path)):
        why = f"{path} is on a network file system"
    elif not _writable(path):
        why = f"{path} cannot be written"
    else:
        return path, DEFAULT
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    fallback = Path(tempfile.gettempdir()) / f"kcache-{user}"
    if why not in _warned:
        _warned.add(why)
        log.warning("kcache: %s; using %s. Set KCACHE_DIR to choose a directory", why, fallback)
    return fallback, FALLBACK


def _writable(path: Path) -> bool:
    """Whether `path` is a writable directory or could be made one. Nothing is created."""
    for place in (path, *path.parents):
        if os.path.lexists(place):
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False
