import pytest

from kvcustody.gateway.failures import FailureReports
from kvcustody.gateway.routes import find_route
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.principal import Principal
from tier_doubles import RecordingAudit

pytestmark = pytest.mark.unit

WRONG = Rejection(AuthenticationFailure.INVALID_KEY, "id")
NONE = Rejection(AuthenticationFailure.NO_KEY)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_client_that_fails_on_is_one_event_an_interval_with_the_number_of_the_others() -> None:
    audit, clock = RecordingAudit(), Clock()
    reports = FailureReports(audit, clock)
    for _ in range(100):
        reports.unauthenticated("10.0.0.1", WRONG)
    clock.now += 10
    reports.unauthenticated("10.0.0.1", WRONG)
    assert [event["suppressed"] for event in audit.events] == [0, 99]
    assert {(event["reason"], event["key_id"]) for event in audit.events} == {("invalid-key", "id")}


def test_another_reason_of_the_same_client_is_an_event_of_its_own() -> None:
    audit = RecordingAudit()
    reports = FailureReports(audit, Clock())
    for _ in range(3):
        for rejection in (WRONG, NONE):
            reports.unauthenticated("10.0.0.1", rejection)
    assert [event["reason"] for event in audit.events] == ["invalid-key", "no-key"]


def test_two_clients_are_two_events() -> None:
    audit = RecordingAudit()
    reports = FailureReports(audit, Clock())
    for client in ("10.0.0.1", "10.0.0.2"):
        reports.unauthenticated(client, NONE)
    assert [event["client"] for event in audit.events] == ["10.0.0.1", "10.0.0.2"]


def test_a_client_with_many_addresses_can_not_fill_the_disk_and_none_is_forgotten() -> None:
    audit, clock = RecordingAudit(), Clock()
    reports = FailureReports(audit, clock)
    for number in range(5_000):
        reports.unauthenticated(f"fe80::{number:x}", NONE)
    assert len(audit.events) == 30
    clock.now += 10
    reports.unauthenticated("10.0.0.1", NONE)
    assert sum(event["suppressed"] + 1 for event in audit.events) == 5_001


def test_who_asks_for_what_it_may_not_is_one_event_an_interval_by_its_credential() -> None:
    audit, clock = RecordingAudit(), Clock()
    reports = FailureReports(audit, clock)
    route = find_route("POST", "/sleep")
    callers = [Caller(Principal("acme", "a"), "k-1"), Caller(Principal("acme", "a"), "k-2")]
    for caller in callers:
        for number in range(100):
            reports.forbidden(f"10.0.0.{number}", caller, route, "not-admin")
    for _ in range(100):
        reports.forbidden("10.0.0.1", Caller(Principal("acme", "anonymous"), None), route, "x")
    assert [event["key_id"] for event in audit.events] == ["k-1", "k-2", None]
    clock.now += 10
    reports.forbidden("10.0.0.1", callers[0], route, "not-admin")
    assert audit.events[-1]["suppressed"] == 99
