"""Settings from a file and the environment."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import (
    CLIENT_VARIABLES,
    SettingsInvalid,
    all_settings,
    data_dir_of,
    load_settings,
)


def loaded(tmp_path: Path, text: str, **environment: str) -> Settings:
    file = tmp_path / "toolhub.yaml"
    file.write_text(text)
    return load_settings(file, environment)


def refused(tmp_path: Path, text: str = "", **environment: str) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        loaded(tmp_path, text, **environment)
    return str(caught.value)


def test_every_setting_is_optional() -> None:
    assert load_settings(None, {}) == Settings()


def test_the_environment_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    text = "server: {listen: '127.0.0.1:1', workers: 2}"
    settings = loaded(tmp_path, text, TOOLHUB_SERVER_WORKERS="3", PATH="/bin")
    assert (settings.server.listen, settings.server.workers, settings.server.drain_s) == ("127.0.0.1:1", 3, 10.0)


@pytest.mark.parametrize("text", ["a, b", '["a", "b"]', "a,b,"])
def test_a_list_in_the_environment_is_commas_or_json(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, "", TOOLHUB_TOOLS_DISABLED=text).tools.disabled == ("a", "b")


def test_numbers_and_truths_are_read_from_text(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "", TOOLHUB_SERVER_DRAIN_S="0.5", TOOLHUB_SERVER_REFLECTION="false")
    assert (settings.server.drain_s, settings.server.reflection) == (0.5, False)


def test_an_unknown_variable_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert "did you mean TOOLHUB_SERVER_LISTEN?" in refused(tmp_path, TOOLHUB_SERVER_LISTN="x")


@pytest.mark.promise("serving.clear-refusals")
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    message = refused(tmp_path, "server: {lisen: x}")
    assert "lisen" in message
    assert "did you mean listen?" in message


def test_variables_of_clients_are_no_settings_and_no_error() -> None:
    assert load_settings(None, dict.fromkeys(CLIENT_VARIABLES, "x")) == Settings()


@pytest.mark.parametrize(
    "text",
    ["server: {workers: 0}", "server: 1", "- a", "a: [", "auth: {modes: [everybody]}", "server: {workers: many}"],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "toolhub.yaml") in refused(tmp_path, text)


def test_a_value_out_of_range_in_the_environment_is_refused_with_its_path(tmp_path: Path) -> None:
    assert "server.workers" in refused(tmp_path, TOOLHUB_SERVER_WORKERS="257")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="No such file"):
        load_settings(tmp_path / "none.yaml", {})


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "# nothing\n") == Settings()


def test_every_setting_has_a_description_and_a_variable_of_its_own() -> None:
    settings = list(all_settings())
    assert [setting.path for setting in settings if len(setting.description) < 10] == []
    assert len({setting.variable for setting in settings}) == len(settings) > 40


def test_every_default_is_valid_when_it_is_written_down(tmp_path: Path) -> None:
    plain = msgspec.to_builtins(Settings())
    assert loaded(tmp_path, msgspec.json.encode(plain).decode()) == Settings()


def test_every_setting_can_be_set_by_the_environment(tmp_path: Path) -> None:
    for setting in all_settings():
        default = setting.default
        text = msgspec.json.encode(default).decode() if not isinstance(default, str) else default
        assert loaded(tmp_path, "", **{setting.variable: text}) == Settings(), setting.path


def test_the_data_folder_follows_the_desktop_convention() -> None:
    assert data_dir_of(Settings(data_dir="/d"), {"XDG_DATA_HOME": "/x"}) == Path("/d")
    assert data_dir_of(Settings(), {"XDG_DATA_HOME": "/x"}) == Path("/x/toolhub")
    assert data_dir_of(Settings(), {}) == Path.home() / ".local/share/toolhub"


def test_a_refused_variable_is_named_and_what_it_may_be() -> None:
    with pytest.raises(SettingsInvalid, match=r"^TOOLHUB_SERVER_WORKERS: Expected `int`"):
        load_settings(None, {"TOOLHUB_SERVER_WORKERS": "many"})
    with pytest.raises(
        SettingsInvalid, match=r"^TOOLHUB_AUTH_MODES: .*; use one of: insecure-local, api-key, jwt, spiffe, xfcc$"
    ):
        load_settings(None, {"TOOLHUB_AUTH_MODES": "password"})
    with pytest.raises(SettingsInvalid, match=r"; use one of: debug, info, warning, error$"):
        load_settings(None, {"TOOLHUB_LOGS_LEVEL": "loud"})
