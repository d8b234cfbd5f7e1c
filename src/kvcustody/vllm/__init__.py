"""The vLLM adapter: the only package that imports vllm or torch to serve requests.

Start at `connector.py`, and follow a request: connector → admission → manager → tier.
"""
