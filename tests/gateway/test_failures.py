import pytest

from kvcustody.gateway.failures import FailureReports
from kvcustody.identity.caller import AuthenticationFailure, Rejection
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
        reports.report("10.0.0.1", WRONG)
    clock.now += 10
    reports.report("10.0.0.1", WRONG)
    assert [event["suppressed"] for event in audit.events] == [0, 99]
    assert {(event["reason"], event["key_id"]) for event in audit.events} == {("invalid-key", "id")}


def test_two_clients_are_two_events() -> None:
    audit = RecordingAudit()
    reports = FailureReports(audit, Clock())
    for client in ("10.0.0.1", "10.0.0.2"):
        reports.report(client, NONE)
    assert [event["client"] for event in audit.events] == ["10.0.0.1", "10.0.0.2"]


def test_a_client_with_many_addresses_can_not_fill_the_disk_and_none_is_forgotten() -> None:
    audit, clock = RecordingAudit(), Clock()
    reports = FailureReports(audit, clock)
    for number in range(5_000):
        reports.report(f"fe80::{number:x}", NONE)
    assert len(audit.events) == 30
    clock.now += 10
    reports.report("10.0.0.1", NONE)
    assert sum(event["suppressed"] + 1 for event in audit.events) == 5_001
