"""A policy that an adapter reads: when it is read, and what happens when it can't be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.policy import AdapterPolicy, CasbinAdapter, PolicyInForce, PolicyWatch
from policy_database import DENIAL, GOOD, SECRET, Hanging, Rows, may_load, settings_with

pytestmark = pytest.mark.unit

REFRESH = 30.0


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A policy that is followed by hand."""

    def __init__(self, folder: Path, adapter: CasbinAdapter, patience: float = 20.0) -> None:
        settings = settings_with(folder, {"adapter": {"class": "policy_database.Rows"}})
        self.clock = Clock()
        self.source = AdapterPolicy(
            settings,
            "table",
            lambda: adapter,
            refresh=REFRESH,
            clock=self.clock,
            patience=patience,
        )
        self.loaded: list[str] = []
        self.rejected: list[CustodyError] = []

    def watch(self) -> None:
        signature = self.source.signature()
        self.policy = PolicyInForce(self.source.load())
        self.follower = PolicyWatch(
            self.policy,
            self.source,
            signature,
            on_loaded=self.loaded.append,
            on_rejected=self.rejected.append,
        )

    def look(self) -> None:
        """Look often, after the time to the next reading."""
        self.clock.now += REFRESH
        for _ in range(3):
            self.follower.look()


def followed(folder: Path, *rows: Sequence[Any]) -> tuple[Site, Rows]:
    adapter = Rows(*rows)
    site = Site(folder, adapter)
    site.watch()
    return site, adapter


def test_a_change_is_put_in_force_when_it_is_time(tmp_path: Path) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    assert may_load(site.policy.current)
    adapter.rows.append(DENIAL)
    site.clock.now += REFRESH - 0.1
    for _ in range(3):
        site.follower.look()
    assert may_load(site.policy.current)
    site.clock.now += 0.1
    for _ in range(2):
        site.follower.look()
    assert not may_load(site.policy.current)
    assert len(site.loaded) == 1


def test_the_same_rules_in_another_order_are_no_change(tmp_path: Path) -> None:
    site, adapter = followed(tmp_path, *GOOD, DENIAL)
    before = site.policy.current
    adapter.rows.reverse()
    site.look()
    assert site.policy.current is before
    assert site.loaded == []


def test_a_reading_that_takes_longer_than_the_refresh_is_put_in_force(tmp_path: Path) -> None:
    class Slow(Rows):
        def load_policy(self, model: Any) -> None:
            site.clock.now += 10 * REFRESH
            super().load_policy(model)

    adapter = Slow(*GOOD)
    site = Site(tmp_path, adapter)
    site.watch()
    adapter.rows.append(DENIAL)
    site.look()
    assert not may_load(site.policy.current)


def test_a_broken_row_is_refused_with_its_place_and_the_last_good_policy_stays(
    tmp_path: Path,
) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    broken = ("p", "acme", "local", "tape", "load", "deny")
    adapter.rows.append(broken)
    site.look()
    (error,) = site.rejected
    assert str(error).startswith("table:3: tier: unknown tier 'tape'")
    assert str(error).endswith("; the row: p, acme, local, tape, load, deny")
    assert may_load(site.policy.current)
    site.look()
    assert len(site.rejected) == 1
    adapter.rows[-1] = DENIAL
    site.look()
    assert not may_load(site.policy.current)


@pytest.mark.parametrize(
    "row", [("p", "acme", "local", "*", "load", "deny", "ttl", "x"), ("p", "acme"), ("g", "acme")]
)
def test_a_row_with_too_many_or_too_few_columns_is_refused(
    tmp_path: Path, row: Sequence[str]
) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    adapter.rows.append(row)
    site.look()
    (error,) = site.rejected
    assert "expected '" in str(error)
    assert may_load(site.policy.current)


def test_a_table_that_is_emptied_allows_nothing(tmp_path: Path) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    adapter.rows.clear()
    site.look()
    assert not may_load(site.policy.current)


def test_hours_without_the_database_are_one_piece_of_news(tmp_path: Path) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    for number in range(100):
        adapter.error = [ConnectionRefusedError(), TimeoutError(), ConnectionResetError()][
            number % 3
        ]
        site.look()
    (error,) = site.rejected
    assert isinstance(error, UnavailableError)
    assert may_load(site.policy.current)
    adapter.error = None
    adapter.rows.append(DENIAL)
    site.look()
    assert not may_load(site.policy.current)
    assert len(site.loaded) == 1
    adapter.error = TimeoutError()
    site.look()
    assert len(site.rejected) == 2


def test_a_start_without_the_database_says_that_it_is_unavailable(tmp_path: Path) -> None:
    adapter = Rows(*GOOD)
    adapter.error = ConnectionRefusedError(SECRET)
    with pytest.raises(UnavailableError, match="table: what it reads can't be reached") as caught:
        Site(tmp_path, adapter).watch()
    assert SECRET not in str(caught.value)


def test_a_database_that_hangs_is_not_waited_for_for_ever_nor_asked_by_ever_more_threads(
    tmp_path: Path,
) -> None:
    adapter = Hanging(*GOOD)
    site = Site(tmp_path, adapter, patience=0.05)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="table: no answer"):
            site.source.load()
    assert adapter.asked == 1
    adapter.let_go.set()
    reading = site.source._reading
    assert reading is not None
    reading.join(20)
    assert may_load(site.source.load())


def test_who_stops_following_hears_nothing_of_a_late_answer(tmp_path: Path) -> None:
    class Closing(Rows):
        def load_policy(self, model: Any) -> None:
            if hasattr(site, "follower"):
                site.follower.close()
            super().load_policy(model)

    adapter = Closing(*GOOD)
    site = Site(tmp_path, adapter)
    site.watch()
    adapter.rows.append(DENIAL)
    site.look()
    assert may_load(site.policy.current)
    adapter.rows.append(("p", "acme"))
    site.look()
    assert not site.loaded
    assert not site.rejected


class RemoteConnectionError(Exception):
    """As drivers define their own."""


class RemoteError(Exception):
    """As drivers define their own."""


class RemoteRefusedError(RemoteConnectionError):
    """As drivers define their own."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(SECRET), UnavailableError),
        (TimeoutError(SECRET), UnavailableError),
        (RemoteConnectionError(SECRET), UnavailableError),
        (RemoteRefusedError(SECRET), UnavailableError),
        (OperationalError(SECRET, SECRET, Exception(SECRET)), UnavailableError),
        (FileNotFoundError(2, "No such file", SECRET), ConfigurationError),
        (RemoteError(SECRET), ConfigurationError),
        (TypeError(SECRET), ConfigurationError),
        (ModuleNotFoundError(SECRET, name="psycopg2"), ConfigurationError),
    ],
)
def test_what_an_adapter_raises_is_one_line_without_its_text(
    tmp_path: Path, error: Exception, expected: type[CustodyError]
) -> None:
    site, adapter = followed(tmp_path, *GOOD)
    adapter.error = error
    site.look()
    (rejected,) = site.rejected
    assert type(rejected) is expected
    assert SECRET not in repr(rejected)
    assert len(str(rejected).splitlines()) == 1
    assert rejected.__cause__ is None
    assert may_load(site.policy.current)


def test_what_an_adapter_does_to_a_model_of_casbin_it_may_do_to_ours(tmp_path: Path) -> None:
    """Ask for sections, kinds and rules, as adapters that filter or save do."""

    class Curious(Rows):
        def load_policy(self, model: Any) -> None:
            model.clear_policy()
            super().load_policy(model)
            assert set(model.keys()) >= {"r", "p", "g", "e", "m"}
            assert [list(row[1:]) for row in GOOD] == model.get_policy("p", "p")
            assert model.has_policy("p", "p", list(GOOD[0][1:]))

    assert may_load(Site(tmp_path, Curious(*GOOD)).source.load())


def test_an_adapter_that_ends_halfway_puts_no_half_policy_in_force(tmp_path: Path) -> None:
    class Ending(Rows):
        def load_policy(self, model: Any) -> None:
            super().load_policy(model)
            if len(self.rows) < len(GOOD):
                raise SystemExit

    adapter = Ending(*GOOD)
    site = Site(tmp_path, adapter)
    site.watch()
    adapter.rows.pop()
    site.look()
    assert len(site.rejected) == 1
    assert may_load(site.policy.current)


def test_fifty_thousand_rows_are_read(tmp_path: Path) -> None:
    rows = [("g", f"acme/w{number}", "customer", "local") for number in range(50_000)]
    source = Site(tmp_path, Rows(*GOOD, *rows)).source
    decisions = source.load()
    assert may_load(decisions)
    assert source.load() is decisions
