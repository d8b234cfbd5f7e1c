"""The policy in force follows its files, and the audit trail says how."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcustody.config import load_settings
from kvcustody.deployment import init_deployment
from kvcustody.errors import ConfigurationError
from kvcustody.identity.principal import Principal
from kvcustody.wiring import LivePolicy
from tier_doubles import RecordingAudit

pytestmark = pytest.mark.unit

ACME = Principal("acme", "chat")
DENIAL = "\np, acme, local, *, load, deny\n"


class Site:
    """A deployment whose policy is followed."""

    def __init__(self, directory: Path) -> None:
        config = directory / "custody.yaml"
        init_deployment(config)
        self.settings = load_settings(config)
        self.file = self.settings.authorization.policy_file
        self.good = self.file.read_text(encoding="utf-8")
        self.audit = RecordingAudit()
        self.policy = LivePolicy(self.settings)
        self.policy.watch(self.audit)

    def may_load(self) -> bool:
        return self.policy.in_force.current.decide(ACME)["disk"].load.allowed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.02)
    site = Site(tmp_path)
    yield site
    site.policy.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_changed_policy_is_put_in_force_and_both_versions_are_recorded(site: Site) -> None:
    first = site.policy.in_force.version
    assert site.may_load()
    site.file.write_text(site.good + DENIAL, encoding="utf-8")
    until(lambda: site.audit.named("policy.loaded"))
    assert not site.may_load()
    (loaded,) = site.audit.named("policy.loaded")
    assert loaded["previous"] == first != loaded["policy_version"] == site.policy.in_force.version


def test_a_broken_policy_changes_nothing_and_is_recorded_with_its_line(site: Site) -> None:
    version = site.policy.in_force.version
    site.file.write_text(f"{site.good}p, acme, local, tape, load, deny\n", encoding="utf-8")
    until(lambda: site.audit.named("policy.rejected"))
    (rejected,) = site.audit.named("policy.rejected")
    assert rejected["file"] == str(site.file)
    assert rejected["line"] == site.good.count("\n") + 1
    assert "unknown tier 'tape'" in rejected["reason"]
    assert site.policy.in_force.version == rejected["policy_version"] == version
    assert site.may_load()
    site.file.write_text(site.good + DENIAL, encoding="utf-8")
    until(lambda: site.audit.named("policy.loaded"))
    assert not site.may_load()


def test_a_policy_that_vanishes_leaves_the_last_good_one_in_force(site: Site) -> None:
    site.file.unlink()
    until(lambda: site.audit.named("policy.rejected"))
    assert site.may_load()
    site.file.write_text(site.good + DENIAL, encoding="utf-8")
    until(lambda: site.audit.named("policy.loaded"))
    assert not site.may_load()


def test_a_policy_that_could_not_be_read_for_a_while_is_read_then_and_was_one_event(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process has too many files open; the file itself stays as it is."""
    tried: list[Path] = []

    def fail(path: Path, _pause: object) -> None:
        tried.append(path)
        raise ConfigurationError("can't be read: Too many open files", path)

    with monkeypatch.context() as broken:
        broken.setattr("kvcustody.policy.loading.read_rules", fail)
        site.file.write_text(site.good + DENIAL, encoding="utf-8")
        until(lambda: len(tried) > 3)
    until(lambda: not site.may_load())
    assert len(site.audit.named("policy.rejected")) == 1


def test_a_copy_that_keeps_size_and_time_of_its_original_is_noticed(site: Site) -> None:
    before = site.file.stat()
    changed = site.good.replace("*, *, allow", "*, *, deny ")
    assert len(changed) == len(site.good)
    site.file.write_text(changed, encoding="utf-8")
    os.utime(site.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    until(lambda: not site.may_load())


def test_a_link_that_is_swung_over_to_another_folder_is_followed(tmp_path: Path) -> None:
    """As Kubernetes replaces a mounted ConfigMap."""
    config = tmp_path / "custody.yaml"
    init_deployment(config)
    folder = tmp_path / "policies"
    first, second, link = tmp_path / "v1", tmp_path / "v2", tmp_path / "current"
    folder.rename(first)
    second.mkdir()
    text = (first / "policy.csv").read_text(encoding="utf-8")
    (second / "model.conf").write_bytes((first / "model.conf").read_bytes())
    (second / "policy.csv").write_text(text + DENIAL, encoding="utf-8")
    link.symlink_to(first.name)
    folder.symlink_to(link.name)
    policy = LivePolicy(load_settings(config))
    audit = RecordingAudit()
    policy.watch(audit)
    try:
        assert policy.in_force.current.decide(ACME)["disk"].load.allowed
        swung = tmp_path / "next"
        swung.symlink_to(second.name)
        swung.rename(link)
        until(lambda: audit.named("policy.loaded"))
        assert not policy.in_force.current.decide(ACME)["disk"].load.allowed
    finally:
        policy.close()


def test_a_deployment_does_not_start_with_a_broken_policy(tmp_path: Path) -> None:
    config = tmp_path / "custody.yaml"
    init_deployment(config)
    (tmp_path / "policies" / "policy.csv").write_text("p, acme\n")
    with pytest.raises(ConfigurationError, match="expected 'p, who"):
        LivePolicy(load_settings(config))
