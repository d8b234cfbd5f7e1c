"""From policy files to decisions."""

import hashlib
from collections.abc import Container, Sequence
from itertools import islice
from pathlib import Path

from kvcustody.config import HostSettings, Settings, TierSettings
from kvcustody.errors import ConfigurationError
from kvcustody.policy.checking import find_errors
from kvcustody.policy.decisions import Decisions
from kvcustody.policy.facts import HOST_KIND, HOST_TIER, Facts, TenantFacts, TierFacts
from kvcustody.policy.model import BUILT_IN_MODEL, check_model
from kvcustody.policy.rules import Pause, RuleSet, never_pause, read_rules

_VERSION_DIGITS = 16
# One is told; a policy for other tenants may have thousands, and finding what each of them may mean
# takes milliseconds.
_ENOUGH = 10


def facts_of(settings: Settings) -> Facts:
    """What custody.yaml says of all that rules name.

    Data that isn't classified counts as the most sensitive. A tier without a clearance takes it.
    """
    levels = tuple(settings.classifications)

    def rank(level: str | None) -> int:
        return len(levels) - 1 if level is None else levels.index(level)

    def tier_facts(kind: str, tier: TierSettings | HostSettings) -> TierFacts:
        return TierFacts(kind, rank(tier.clearance), frozenset(tier.labels), tier.region)

    return Facts(
        settings.deployment,
        {
            HOST_TIER: tier_facts(HOST_KIND, settings.host),
            **{tier.name: tier_facts(tier.kind, tier) for tier in settings.tiers},
        },
        {
            name: TenantFacts(rank(tenant.classification), tuple(tenant.residency))
            for name, tenant in settings.tenants.items()
        },
        tuple(entry.group for entry in settings.sharing),
        levels,
    )


def unenforced_tenants(settings: Settings) -> frozenset[str]:
    """Tenants whose denials are recorded, not enforced."""
    authorization = settings.authorization
    everybody = authorization.mode == "audit-only"
    return frozenset(settings.tenants if everybody else authorization.audit_only)


def load_policy(
    policy: Path,
    model: Path | None,
    facts: Facts,
    unenforced: Container[str] = frozenset(),
    pause: Pause = never_pause,
) -> Decisions:
    """Read, check and compile a policy.

    Args:
        policy: CSV file; see `read_rules`.
        model: Casbin model; `None` for the built-in one.
        facts: what custody.yaml says of tenants and tiers.
        unenforced: tenants whose denials are recorded, not enforced.
        pause: called now and then.

    Raises:
        ConfigurationError: a file can't be read, or a line of it is wrong.

    """
    model_text = read_model(model)
    return compile_policy(read_rules(policy, pause), model_text, facts, unenforced, pause)


def compile_policy(
    rule_set: RuleSet,
    model_text: str,
    facts: Facts,
    unenforced: Container[str] = frozenset(),
    pause: Pause = never_pause,
) -> Decisions:
    """Check and compile rules.

    Raises:
        ConfigurationError: one of them is wrong.

    """
    errors = policy_errors(rule_set, facts, pause, _ENOUGH)
    if errors:
        raise errors[0]
    version = version_of(model_text, rule_set)
    return Decisions(rule_set.rules, facts, version, unenforced, pause)


class PolicyFiles:
    """A policy in files.

    Args:
        settings: custody.yaml.

    """

    def __init__(self, settings: Settings) -> None:
        self._policy = settings.authorization.policy_file
        self._model = settings.authorization.model
        self._facts = facts_of(settings)
        self._unenforced = unenforced_tenants(settings)
        self._unread = 0

    def signature(self) -> object:
        """What `stat` says of the files, and how often they could not be read."""
        files = (self._policy, self._model)
        return (self._unread, *(_stat(file) for file in files if file is not None))

    def load(self, pause: Pause = never_pause) -> Decisions:
        """Read, check and compile the policy.

        Raises:
            ConfigurationError: a file can't be read, or a line of it is wrong.

        """
        try:
            return load_policy(self._policy, self._model, self._facts, self._unenforced, pause)
        except ConfigurationError as error:
            if error.line is None:
                # Not a mistake in a line: the same file may be read a moment later.
                self._unread += 1
            raise


def policy_errors(
    rule_set: RuleSet, facts: Facts, pause: Pause = never_pause, most: int | None = None
) -> Sequence[ConfigurationError]:
    """What is wrong with a policy, in the order of its lines.

    Args:
        rule_set: the policy.
        facts: what custody.yaml says of tenants and tiers.
        pause: called now and then.
        most: after so many wrong rules, no more are looked for; `None`: all are.

    """
    found = islice(find_errors(rule_set.rules, facts, pause), most)
    errors = [*rule_set.problems, *found]
    return sorted(errors, key=lambda error: error.line or 0)


def read_model(model: Path | None) -> str:
    """The text of a model that may be used.

    Raises:
        ConfigurationError: it can't be read, or isn't the built-in one.

    """
    if model is None:
        return BUILT_IN_MODEL
    try:
        text = model.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError("no such file; correct `authorization`", model) from None
    except UnicodeDecodeError:
        raise ConfigurationError("not UTF-8 text", model) from None
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", model) from None
    check_model(text, model)
    return text


def version_of(model: str, rule_set: RuleSet) -> str:
    """How audit events name a policy: a digest of model and rules, as they are written."""
    digest = hashlib.sha256(model.encode() + b"\0" + rule_set.digest)
    return digest.hexdigest()[:_VERSION_DIGITS]


def _stat(file: Path) -> object:
    try:
        status = file.stat()
    except OSError as error:
        return error.errno
    # The last changes with rights and with copies that keep the time of their original.
    changed = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, changed
