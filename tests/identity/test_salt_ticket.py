"""Salt tickets: good for one request, for a minute, and for nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.identity.salt_ticket import SaltTickets

pytestmark = pytest.mark.unit

KEY = bytes(range(32))
SALT = "s" * 43
RID = "0f" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tickets(clock: Clock) -> SaltTickets:
    return SaltTickets(KEY, 60.0, clock)


@pytest.mark.parametrize(
    "request_id", [RID, f"embd-{RID}-0", f"score-{RID}-1a2b", f"cmpl-{RID}-7f-beam-3"]
)
def test_a_ticket_gives_its_salt_to_its_request(tickets: SaltTickets, request_id: str) -> None:
    assert tickets.open(tickets.issue(SALT, RID), request_id) == (SALT, RID)


def test_a_ticket_gives_nothing_to_another_request(tickets: SaltTickets) -> None:
    ticket = tickets.issue(SALT, RID)
    for other in ("1f" * 16, f"embd-{RID}0-0", f"embd-{RID[1:]}", "", f"{RID}{RID}"):
        assert tickets.open(ticket, other) is None
    assert tickets.open(ticket, f"embd-{RID}-0") is not None


def test_a_ticket_ends(tickets: SaltTickets, clock: Clock) -> None:
    ticket = tickets.issue(SALT, RID)
    clock.now += 64
    assert tickets.open(ticket, RID) == (SALT, RID), "clocks may differ by 5 s"
    clock.now += 3
    assert tickets.open(ticket, RID) is None
    salt, expires, code = ticket.split(".")
    assert tickets.open(f"{salt}.{int(expires) + 60}.{code}", RID) is None


def test_a_ticket_for_one_salt_is_none_for_another(tickets: SaltTickets) -> None:
    ticket = tickets.issue(SALT, RID)
    assert tickets.open("t" * 43 + ticket[43:], RID) is None
    assert tickets.open(ticket, RID) == (SALT, RID)


def test_a_ticket_of_another_deployments_key_is_none(tickets: SaltTickets, clock: Clock) -> None:
    other = SaltTickets(bytes(32), 60.0, clock)
    assert tickets.open(other.issue(SALT, RID), RID) is None
    assert other.open(other.issue(SALT, RID), RID) == (SALT, RID)


def test_a_plain_salt_is_no_ticket(tickets: SaltTickets) -> None:
    for text in (SALT, "", ".", f"{SALT}.1060.", f"{SALT}.1060." + "A" * 22, f"{SALT}.{RID}"):
        assert tickets.open(text, RID) is None


def test_vllm_takes_a_ticket_for_a_salt(tickets: SaltTickets) -> None:
    # vllm/entrypoints/openai/engine/protocol.py, `validate_cache_salt`
    ticket = tickets.issue(SALT, RID)
    assert len(ticket) <= 128
    assert not set(ticket) & set("@/\\\0")


@given(st.text(), st.text())
def test_no_text_at_all_is_an_error(salt: str, request_id: str) -> None:
    assert SaltTickets(KEY, 60.0, Clock()).open(salt, request_id) is None


@given(st.data())
def test_a_changed_ticket_is_none(data: st.DataObject) -> None:
    tickets = SaltTickets(KEY, 60.0, Clock())
    ticket = tickets.issue(SALT, RID)
    at = data.draw(st.integers(0, len(ticket) - 1))
    changed = data.draw(st.characters(codec="utf-8").filter(lambda c: c != ticket[at]))
    text = ticket[:at] + changed + ticket[at + 1 :]
    if at == len(ticket) - 1:
        return  # its lowest bits are no part of the code's 16 bytes
    assert tickets.open(text, RID) is None
