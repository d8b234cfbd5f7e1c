"""Base64 (RFC 4648, section 4) for secrets: from `bytearray` to `bytearray`.

`base64` and `binascii` make `bytes`, which can't be wiped. No number here exceeds a byte, because
Python keeps those once and for all, and a larger one is an object that the memory keeps.
"""

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DIGITS = {character: digit for digit, character in enumerate(_ALPHABET)}
_PADDING = ord("=")


def encode(secret: bytearray) -> bytearray:
    """Text of a secret."""
    text = bytearray((len(secret) + 2) // 3 * 4)
    for group, start in enumerate(range(0, len(secret), 3)):
        first = secret[start]
        second = secret[start + 1] if start + 1 < len(secret) else 0
        third = secret[start + 2] if start + 2 < len(secret) else 0
        digits = (
            first >> 2,
            (first & 3) << 4 | second >> 4,
            (second & 15) << 2 | third >> 6,
            third & 63,
        )
        used = min(len(secret) - start, 3) + 1
        for index, digit in enumerate(digits):
            text[4 * group + index] = _ALPHABET[digit] if index < used else _PADDING
    return text


def decode(text: memoryview) -> bytearray:
    """The secret of a text.

    Raises:
        ValueError: it is not base64 with its padding; the message holds nothing of it.

    """
    padding = 0
    while padding < min(2, len(text)) and text[-1 - padding] == _PADDING:
        padding += 1
    secret = bytearray(len(text) // 4 * 3 - padding if text else 0)
    size = len(text) - padding
    if len(text) % 4 or any(character not in _DIGITS for character in text[:size]):
        raise ValueError("not base64")
    for index in range(len(secret)):
        start, place = divmod(index, 3)
        high = _DIGITS[text[4 * start + place]]
        low = _DIGITS[text[4 * start + place + 1]]
        # Of two neighbouring digits of 6 bits, a byte takes 6 + 2, 4 + 4 or 2 + 6.
        secret[index] = (high << (2 + 2 * place) & 255) | low >> (4 - 2 * place)
    return secret
