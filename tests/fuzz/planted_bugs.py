"""Bugs to put into the reader, one at a time: a fuzzer that doesn't find them finds nothing."""

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from kvcustody.sealing import block
from kvcustody.sealing.format import Header, OpenFailure

_parse = Header.parse
_check_header = block._check_header
_open_into = block.open_into


def _parser_raises(sealed: bytes) -> Header | OpenFailure:
    parsed = _parse(sealed)
    if isinstance(parsed, Header) and parsed.created > parsed.expires:
        raise ValueError("a life that ends before it begins")
    return parsed


def _parser_reads_signed(sealed: bytes) -> Header | OpenFailure:
    parsed = _parse(sealed)
    if isinstance(parsed, Header):
        return replace(parsed, expires=parsed.expires & (2**63 - 1))
    return parsed


def _expires_late(
    header: Header, capacity: int, identity: block.BlockIdentity, now: int
) -> OpenFailure | None:
    return _check_header(header, capacity, identity, now - 1)


def _ignores_the_end(destination: memoryview, sealed: memoryview, *rest: Any, now: int) -> Any:
    return _open_into(destination, sealed[: len(destination) + 208], *rest, now=now)


def _leaves_data(destination: memoryview, *rest: Any, now: int) -> Any:
    before = bytes(destination)
    failure = _open_into(destination, *rest, now=now)
    if failure is OpenFailure.COMMITMENT:
        destination[:] = before
    return failure


def _agrees(_one: bytes, _other: bytes) -> bool:
    return True


PLANTS: dict[str, Callable[[], object]] = {
    "parser-raises": mock.patch.object(Header, "parse", _parser_raises).start,
    "parser-reads-signed": mock.patch.object(Header, "parse", _parser_reads_signed).start,
    "expires-late": mock.patch.object(block, "_check_header", _expires_late).start,
    "ignores-the-end": mock.patch.object(block, "open_into", _ignores_the_end).start,
    "leaves-data": mock.patch.object(block, "open_into", _leaves_data).start,
    "no-commitment": mock.patch.object(hmac, "compare_digest", _agrees).start,
}
