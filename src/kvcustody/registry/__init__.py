"""The registry: namespaces, wrapped keys and API keys, shared by the processes of a deployment."""

from kvcustody.registry.registry import Registry, open_registry

__all__ = ["Registry", "open_registry"]
