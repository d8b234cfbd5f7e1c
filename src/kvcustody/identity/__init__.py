"""Identity: for whom a request is, proven by an API key and, behind the gateway, an assertion."""

from kvcustody.identity.principal import Principal

__all__ = ["Principal"]
