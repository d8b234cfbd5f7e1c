"""The gateway: the only way in. It says for whom a request is; the client has no say in it."""

from kvcustody.gateway.middleware import CustodyGateway

__all__ = ["CustodyGateway"]
