"""A message that AES-GCM opens under two keys: why a sealed block commits to its key.

GHASH is linear, so of a ciphertext that has one free block, that block can be solved for such that
two keys give one tag (Dodis, Grubbs, Ristenpart, Woodage: "Fast Message Franking", 2018).
"""

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK = 16
# x^128 + x^7 + x^2 + x + 1 in GCM's bit order, where the leftmost bit is the coefficient of 1.
_REDUCTION = 0xE1 << 120
_ONE = 1 << 127


def colliding_ciphertext(keys: tuple[bytes, bytes], aad: bytes, content: bytes) -> bytes:
    """Ciphertext and tag that both keys open, with the nonce of 12 zero bytes.

    Args:
        keys: two AES-256 keys.
        aad: the associated data, whole blocks of 16 bytes.
        content: the ciphertext but for its last block, whole blocks of 16 bytes.

    """
    blocks = [_number(part) for part in _parts(aad + content)]
    lengths = (len(aad) * 8 << 64) | (len(content) + _BLOCK) * 8
    hashes = [_number(_encrypt_block(key, bytes(_BLOCK))) for key in keys]
    masks = [_number(_encrypt_block(key, bytes(_BLOCK - 1) + b"\x01")) for key in keys]
    # With 0 as the free block, the tags differ by `difference`; it adds (h1² + h2²)·block to that.
    tags = [_ghash(h, [*blocks, 0, lengths]) ^ mask for h, mask in zip(hashes, masks, strict=True)]
    factor = _multiply(hashes[0], hashes[0]) ^ _multiply(hashes[1], hashes[1])
    free = _multiply(tags[0] ^ tags[1], _inverse(factor))
    tag = _ghash(hashes[0], [*blocks, free, lengths]) ^ masks[0]
    return content + free.to_bytes(_BLOCK) + tag.to_bytes(_BLOCK)


def _parts(content: bytes) -> list[bytes]:
    return [content[start : start + _BLOCK] for start in range(0, len(content), _BLOCK)]


def _number(block: bytes) -> int:
    return int.from_bytes(block)


def _encrypt_block(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)  # noqa: S305 - one block


def _ghash(h: int, blocks: list[int]) -> int:
    total = 0
    for block in blocks:
        total = _multiply(total ^ block, h)
    return total


def _multiply(one: int, other: int) -> int:
    product = 0
    for bit in range(127, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = (other >> 1) ^ (_REDUCTION if other & 1 else 0)
    return product


def _inverse(element: int) -> int:
    """By Fermat: the element to the power 2^128 - 2."""
    result = _ONE
    square = element
    for _ in range(127):
        square = _multiply(square, square)
        result = _multiply(result, square)
    return result
