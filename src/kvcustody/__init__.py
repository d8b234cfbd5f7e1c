"""kvcustody: custody for vLLM's offloaded KV cache.

Everything that leaves the accelerator is owned by a tenant, bound to one model revision, sealed,
allowed by policy, kept no longer than agreed, and accounted for in an audit trail.
"""

__version__ = "0.1.0"
