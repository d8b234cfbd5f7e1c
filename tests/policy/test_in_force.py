"""The policy in force follows its source, and a bad version changes nothing."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.policy import Decisions, PolicyInForce, PolicySource, PolicyWatch, Rule
from kvcustody.policy.rules import Pause
from policy_loading import ACME, FACTS

pytestmark = pytest.mark.unit


def version(name: str, *, may_load: bool = True) -> Decisions:
    effect = "allow" if may_load else "deny"
    rule = Rule("p", ("acme", "local", "disk", "load", effect, "*"), Path("policy.csv"), 1)
    return Decisions([rule], FACTS, name)


class Written(PolicySource):
    """A source whose policy a test writes."""

    def __init__(self) -> None:
        self.content: Decisions | CustodyError = version("first")
        self.written = 0
        self.loads = 0
        self.broken: Exception | None = None
        self.when_broken: Callable[[], None] = lambda: None
        self.while_loading: Callable[[], None] = lambda: None

    def write(self, content: Decisions | CustodyError) -> None:
        self.content = content
        self.written += 1

    def signature(self) -> object:
        if self.broken is not None:
            self.when_broken()
            raise self.broken
        return self.written

    def load(self, pause: Pause) -> Decisions:
        pause()
        self.loads += 1
        content = self.content
        self.while_loading()
        if isinstance(content, CustodyError):
            raise content
        return content


class Site:
    """A policy in force, its source, and what was told."""

    def __init__(self) -> None:
        self.source = Written()
        self.policy = PolicyInForce(version("first"))
        self.loaded: list[tuple[str, str]] = []
        self.rejected: list[str] = []
        self.watch = PolicyWatch(
            self.policy,
            self.source,
            self.source.signature(),
            on_loaded=lambda before: self.loaded.append((before, self.policy.version)),
            on_rejected=lambda error: self.rejected.append(str(error)),
        )

    def look(self, times: int = 2) -> None:
        for _ in range(times):
            self.watch.look()


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_new_version_is_in_force_after_two_looks_that_saw_the_same(site: Site) -> None:
    site.source.write(version("second", may_load=False))
    site.look(1)
    assert (site.policy.version, site.source.loads) == ("first", 0)
    site.look(1)
    assert site.policy.version == "second"
    assert not site.policy.current.decide(ACME)["disk"].load.allowed
    assert site.loaded == [("first", "second")]
    site.look()
    assert site.source.loads == 1


def test_what_was_loaded_at_the_start_is_not_loaded_again(site: Site) -> None:
    site.look(3)
    assert site.source.loads == 0


def test_a_file_that_is_being_written_is_left_alone(site: Site) -> None:
    for half in range(5):
        site.source.write(version(f"half {half}"))
        site.look(1)
    assert (site.policy.version, site.source.loads) == ("first", 0)
    site.look(1)
    assert site.loaded == [("first", "half 4")]


def test_a_broken_version_is_refused_once_and_the_last_good_one_stays(site: Site) -> None:
    site.source.write(ConfigurationError("nonsense", Path("policy.csv"), 3))
    site.look(5)
    assert site.rejected == ["policy.csv:3: nonsense"]
    assert site.source.loads == 1
    assert (site.policy.version, site.loaded) == ("first", [])
    assert site.policy.current.decide(ACME)["disk"].load.allowed


def test_the_same_mistake_is_told_once_however_often_it_is_saved(site: Site) -> None:
    for _ in range(3):
        site.source.write(ConfigurationError("nonsense"))
        site.look()
    assert site.rejected == ["nonsense"]
    site.source.write(ConfigurationError("other nonsense"))
    site.look()
    assert site.rejected == ["nonsense", "other nonsense"]


def test_a_corrected_version_is_put_in_force_and_the_mistake_may_be_told_again(site: Site) -> None:
    for content in (
        ConfigurationError("nonsense"),
        version("second"),
        ConfigurationError("nonsense"),
    ):
        site.source.write(content)
        site.look()
    assert site.loaded == [("first", "second")]
    assert site.rejected == ["nonsense", "nonsense"]


def test_a_source_that_can_not_be_reached_changes_nothing(site: Site) -> None:
    site.source.write(UnavailableError("the database is away"))
    site.look()
    assert site.rejected == ["the database is away"]
    assert site.policy.version == "first"


def test_what_changed_while_it_was_loaded_is_loaded_again(site: Site) -> None:
    later = [version("third")]
    site.source.while_loading = lambda: site.source.write(later.pop()) if later else None
    site.source.write(version("second"))
    site.look()
    assert (site.policy.version, site.loaded) == ("first", [])
    site.look()
    assert site.loaded == [("first", "third")]


def test_a_version_that_says_the_same_is_no_new_one(site: Site) -> None:
    before = site.policy.current
    site.source.write(version("first"))
    site.look(4)
    assert site.source.loads == 1
    assert site.policy.current is before
    assert site.loaded == []


def test_who_holds_the_old_version_goes_on_with_it(site: Site) -> None:
    held = site.policy.current
    site.source.write(version("second", may_load=False))
    site.look()
    assert held.decide(ACME)["disk"].load.allowed
    assert not site.policy.current.decide(ACME)["disk"].load.allowed


def test_sharing_is_asked_of_the_version_in_force(site: Site) -> None:
    rule = Rule("p", ("acme", "local", "manuals", "share", "allow", "*"), Path("policy.csv"), 1)
    assert not site.policy.may_share(ACME, "manuals").allowed
    site.policy.current = Decisions([rule], FACTS, "second")
    assert site.policy.may_share(ACME, "manuals").allowed


@pytest.fixture
def quick(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site that is looked at all the time."""
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.001)
    site.watch.start()
    yield site
    site.watch.close()


def test_an_exception_in_the_source_does_not_end_the_looking(
    quick: Site, caplog: pytest.LogCaptureFixture
) -> None:
    failed_twice = threading.Semaphore(0)
    quick.source.when_broken = failed_twice.release
    with caplog.at_level(logging.ERROR):
        quick.source.broken = RuntimeError("out of order")
        assert failed_twice.acquire(timeout=10)
        assert failed_twice.acquire(timeout=10)
    assert "the last good one stays" in caplog.text
    assert quick.policy.version == "first"
    changed = threading.Event()
    quick.source.while_loading = changed.set
    quick.source.broken = None
    quick.source.write(version("second"))
    assert changed.wait(10)


def test_close_ends_the_looking(quick: Site) -> None:
    quick.watch.close()
    assert not quick.watch._thread.is_alive()
    quick.source.write(version("second"))
    assert quick.source.loads == 0


def test_what_was_never_started_can_be_closed(site: Site) -> None:
    site.watch.close()
