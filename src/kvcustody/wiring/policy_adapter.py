"""Open the Casbin adapter that custody.yaml names."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcustody.config import AdapterSettings, Argument, SecretFile, Settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy import AdapterPolicy, CasbinAdapter
from kvcustody.registry.read_only import open_read_only
from kvcustody.sealing.providers.secret_files import passphrase_in

_SECTION = "authorization.adapter"
# The adapter that the extra `policy-db` brings.
_PACKAGE_OF_EXTRA = "sqlalchemy_adapter"


def open_adapter_policy(settings: Settings, adapter: AdapterSettings) -> AdapterPolicy:
    """The policy that an adapter reads; nothing is read yet.

    Args:
        settings: custody.yaml.
        adapter: its section on the adapter.

    Raises:
        ConfigurationError: the adapter's class can't be used.

    """
    with settings.places.blame("authorization", "adapter", "class"):
        adapter_class = _import(adapter.class_name)
    opening = _Opening(settings, adapter, adapter_class)
    return AdapterPolicy(settings, adapter.class_name, opening.current, refresh=adapter.refresh)


class _Opening:
    """Makes the adapter, and makes it again when a secret has changed.

    Args:
        settings: custody.yaml.
        adapter: its section on the adapter.
        adapter_class: the adapter's class.

    """

    def __init__(
        self, settings: Settings, adapter: AdapterSettings, adapter_class: Callable[..., Any]
    ) -> None:
        self._settings = settings
        self._adapter = adapter
        self._class = adapter_class
        self._made: tuple[object, CasbinAdapter] | None = None

    def current(self) -> CasbinAdapter:
        """The adapter, with the secrets that the files hold now.

        Raises:
            ConfigurationError: a file can't be read, or a URL is none.

        """
        url = self._url()
        arguments = self._adapter.arguments
        with self._settings.places.blame("authorization", "adapter", "arguments"):
            positional = [_value(each) for each in arguments.positional]
            named = {name: _value(each) for name, each in arguments.named.items()}
        secrets = url, positional, named
        if self._made is not None and self._made[0] == secrets:
            return self._made[1]
        if url is not None:
            with self._settings.places.blame("authorization", "adapter", self._url_field):
                engine = open_read_only(url, f"{_SECTION}.{self._url_field}")
            positional = [engine, *positional]
        made: CasbinAdapter = self._class(*positional, **named)
        self._made = secrets, made
        return made

    @property
    def _url_field(self) -> str:
        return "database" if self._adapter.url_file is None else "url_file"

    def _url(self) -> str | None:
        if self._adapter.database is not None:
            return self._settings.registry_url
        if self._adapter.url_file is None:
            return None
        with self._settings.places.blame("authorization", "adapter", "url_file"):
            return _read_secret(self._adapter.url_file, "database URL")


def _import(name: str) -> Callable[..., Any]:
    module_name, _, class_name = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        hint = "install the package that has it"
        if missing == _PACKAGE_OF_EXTRA:
            hint = "run pip install 'kvcustody[policy-db]'"
        raise _wrong_class(f"there is no module '{missing}'; {hint}") from None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        problem = f"module '{module_name}' can't be imported ({type(error).__name__})"
        raise _wrong_class(problem) from None
    if not inspect.isclass(found):
        raise _wrong_class(f"module '{module_name}' has no class '{class_name}'")
    load = getattr(found, "load_policy", None)
    if load is None:
        raise _wrong_class(f"'{class_name}' is no Casbin adapter: it has no load_policy")
    if inspect.iscoroutinefunction(load):
        raise _wrong_class(f"'{class_name}' is asynchronous; name an adapter that isn't")
    return found


def _value(argument: Argument) -> object:
    return _read_secret(argument.path, "secret") if isinstance(argument, SecretFile) else argument


def _read_secret(path: Path, what: str) -> str:
    with passphrase_in(path, what) as secret:
        try:
            return bytes(secret).decode()
        except UnicodeDecodeError:
            raise ConfigurationError("not UTF-8 text", path) from None


def _wrong_class(message: str) -> ConfigurationError:
    return ConfigurationError(message, field=f"{_SECTION}.class")
