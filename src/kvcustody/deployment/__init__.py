"""A new deployment: configuration, policies, root key and API keys below one folder."""

from kvcustody.deployment.scaffold import init_deployment

__all__ = ["init_deployment"]
