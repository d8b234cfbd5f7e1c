"""Who runs a command, and whether the policy lets them do what it does.

This keeps colleagues to their roles. Whoever may write the policy, or read the keys by other means,
is not held by it.
"""

from collections.abc import Iterable

from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError
from kvcustody.operating_user import operator_name
from kvcustody.policy import Action, Question
from kvcustody.wiring import load_decisions

ALL_TENANTS = "*"
"""What a command is about that isn't about some tenants only."""


def check_allowed(settings: Settings, action: Action, tenants: Iterable[str]) -> None:
    """Check that the policy allows an administrative action to whoever runs this.

    Args:
        settings: custody.yaml.
        action: what is to be done.
        tenants: whose data it is done to; `ALL_TENANTS` for everybody's.

    Raises:
        ConfigurationError: it doesn't, or the policy is wrong.

    """
    decisions = load_decisions(settings)
    who = operator_name()
    concerned = set(tenants)
    if ALL_TENANTS in concerned:
        concerned.update(settings.tenants)  # a denial for one of them counts, too
    for tenant in sorted(concerned):
        decision = decisions.answer(Question(who, tenant, action))
        if not decision.allowed:
            about = "all tenants" if tenant == ALL_TENANTS else f"tenant '{tenant}'"
            rule = f"p, {who}, {settings.deployment}, {tenant}, {action}, allow"
            why = f"see {decision.rule}" if decision.rule else f"a rule that does: {rule}"
            raise ConfigurationError(
                f"the policy doesn't let {who} {action} for {about}; {why}",
                settings.authorization.policy,
            )
