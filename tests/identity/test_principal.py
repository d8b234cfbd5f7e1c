import pytest

from kvcustody.identity.principal import Principal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "name", ["alice", "acme", "Zo\u00eb", "\u5f20\u4f1f", "a" * 256, "a b", "a|b", "a/b"]
)
def test_a_canonical_name_is_taken_as_it_is(name: str) -> None:
    assert Principal("acme", "chat", name).subject == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 257,
        "Zoe\u0308",  # the same as Zo\u00eb to a reader, in other bytes
        "acme\n",
        "acme\x00",
        "acme\x1b[2K",
        "ac\u200bme",  # a space of no width
        "\u202eemca",  # written backwards
        " acme",
        "acme ",
        "ac\u3164me",  # Hangul's filler, printable to Python
        "acme\ufe0f",  # a variation of nothing
        "acme\U000e0100",
        "ac\u034fme",
        "acme\ud800",
    ],
)
def test_a_name_that_could_pass_for_another_is_refused(name: str) -> None:
    for fields in ((name, "chat", None), ("acme", name, None), ("acme", "chat", name)):
        with pytest.raises(ValueError, match="canonical") as caught:
            Principal(*fields)
        assert not name or name not in str(caught.value)
