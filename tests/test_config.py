"""Settings: where each value comes from, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcache import config
from kcache.config import SETTINGS, Settings
from kcache.errors import ConfigError
from kcache.units import GIB, format_seconds, format_size, parse_duration, parse_size


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_defaults():
    settings = Settings.load()
    assert (settings.max_size, settings.strict, settings.enabled, settings.link) == (10 * GIB, False, True, "auto")
    assert settings.key_env == ()
    assert set(settings.origins) == {setting.id for setting in SETTINGS}
    assert set(settings.origins.values()) == {"default"}
    assert not settings.dir.exists()


def test_argument_beats_environment_beats_default(monkeypatch, tmp_path):
    monkeypatch.setenv("KCACHE_MAX_SIZE", "1GiB")
    monkeypatch.setenv("KCACHE_DIR", str(tmp_path / "env"))
    settings = Settings.load(max_size="2GiB")
    assert settings.max_size == 2 * GIB
    assert settings.dir == tmp_path / "env"
    assert settings.origins["max_size"] == "argument"
    assert settings.origins["dir"] == "environment"
    assert Settings.load(max_size=None).max_size == GIB


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("off", False)])
def test_switches(monkeypatch, text, value):
    monkeypatch.setenv("KCACHE_STRICT", text)
    monkeypatch.setenv("KCACHE", text)
    assert Settings.load().strict is value
    assert Settings.load().enabled is value


def test_key_env_is_a_sorted_set(monkeypatch):
    monkeypatch.setenv("KCACHE_KEY_ENV", "MY_FLAG, A,,A")
    assert Settings.load().key_env == ("A", "MY_FLAG")
    assert Settings.load(key_env=["Z", "B"]).key_env == ("B", "Z")


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("KCACHE_MAX_SIZE", "ten", "max_size"),
        ("KCACHE_MAX_SIZE", "1KiB", "max_size"),
        ("KCACHE_STRICT", "perhaps", "strict"),
        ("KCACHE_LINK", "always", "link"),
        ("KCACHE_DIR", "relative/path", "dir"),
        ("KCACHE_LOG", "loud", "log"),
    ],
)
def test_error_names_setting_value_and_origin(monkeypatch, variable, value, name):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        Settings.load()
    text = str(caught.value)
    assert name in text
    assert repr(value) in text
    assert f"from {variable} in the environment" in text


SECRET = "a secret of the team"


def test_signing_key_is_the_same_from_everywhere_and_never_shown(monkeypatch, tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    given = Settings.load(signing_key=SECRET)
    assert len(given.signing_key) == 32
    monkeypatch.setenv("KCACHE_SIGNING_KEY_FILE", str(file))
    read = Settings.load()
    assert (read.signing_key, read.origins["signing_key"]) == (given.signing_key, "environment")
    monkeypatch.delenv("KCACHE_SIGNING_KEY_FILE")
    monkeypatch.setenv("KCACHE_SIGNING_KEY", SECRET + "!")
    other = Settings.load()
    assert other.signing_key != given.signing_key
    assert "signing" not in repr(other) or SECRET not in repr(other)
    assert repr(given.signing_key) not in repr(given)


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [(0o640, SECRET, "chmod 600"), (0o604, SECRET, "chmod 600"), (0o600, "short", "at least 16"), (0, None, "No such")],
    ids=["group", "others", "short", "missing"],
)
def test_signing_key_file_that_is_refused(monkeypatch, tmp_path, mode, text, said):
    if text is not None:
        (tmp_path / "key").write_text(text)
        (tmp_path / "key").chmod(mode)
    monkeypatch.setenv("KCACHE_SIGNING_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ConfigError, match=said) as caught:
        Settings.load()
    assert SECRET not in str(caught.value)


def test_signing_key_that_is_refused_is_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("KCACHE_SIGNING_KEY", "hunter2")
    with pytest.raises(ConfigError, match="at least 16 characters") as caught:
        Settings.load()
    assert "hunter2" not in str(caught.value)
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(ConfigError, match="Set one of them"):
        Settings.load(signing_key=SECRET, signing_key_file=tmp_path / "key")


def test_unknown_setting_is_refused():
    with pytest.raises(ConfigError, match="colour is not a setting"):
        Settings.load(colour="red")


def test_default_that_cannot_be_written_falls_back_and_says_so_once(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(config, "_warned", set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    settings = Settings.load()
    assert "cannot be written; using" in caplog.text
    assert settings.dir == Path(tmp_path / "tmp" / f"kcache-{os.getuid()}")
    assert settings.origins["dir"] == "fallback"
    caplog.clear()
    assert Settings.load() == settings
    assert caplog.text == ""


def test_explicit_directory_is_not_replaced(tmp_path):
    (tmp_path / "file").write_text("")
    assert Settings.load(dir=tmp_path / "file").dir == tmp_path / "file"


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), (77, 77), ("10GiB", 10 << 30), ("1.5 MiB", 3 << 19), ("10G", 10 << 30), ("1GB", 10**9), ("5b", 5)],
)
def test_sizes(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize(("text", "value"), [("7d", 604800), ("12h", 43200), ("30m", 1800), ("90", 90), (5, 5)])
def test_durations(text, value):
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "10 parsecs", "1..5G", "0x10"])
def test_texts_that_are_no_size(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (10 << 30, "10 GiB"), ((1 << 20) - 1, "1 MiB")],
)
def test_sizes_for_people(count, text):
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000085, "85 us"),
        (0.0042, "4.2 ms"),
        (3.14, "3.1 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (12000, "3 h 20 min"),
        (187200, "2 d 04 h"),
    ],
)
def test_seconds_for_people(seconds, text):
    assert format_seconds(seconds) == text
