"""What the tests of the registry have in common."""

import pytest
from sqlalchemy import insert, select

from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import namespaces, service_keys


def refusal(url: str) -> ConfigurationError:
    """The one line that says why a registry can't be used."""
    with pytest.raises(ConfigurationError) as caught:
        open_registry(url)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def failure(url: str) -> str:
    """The one line that says why a registry can't be reached."""
    with pytest.raises(UnavailableError) as caught:
        open_registry(url)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def add(registry: Registry, purpose: str, wrapped: bytes = b"wrapped") -> None:
    """Add a service key."""
    with registry.write() as connection:
        connection.execute(
            insert(service_keys).values(purpose=purpose, wrapped=wrapped, created=0.0)
        )


def purposes(registry: Registry) -> list[str]:
    """The service keys that there are."""
    with registry.read() as connection:
        return list(connection.scalars(select(service_keys.c.purpose)))


def add_namespace(registry: Registry, wrapped: bytes = b"") -> None:
    """Add the namespace `n`."""
    with registry.write() as connection:
        connection.execute(
            insert(namespaces).values(
                id="n",
                tenant="acme",
                model_revision="m",
                layout="l",
                wrapped_naming_key=wrapped,
                created=0.0,
            )
        )
