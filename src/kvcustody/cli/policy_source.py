"""The policy that a `kvcustody policy` command is about."""

from pathlib import Path

from kvcustody.config import Settings
from kvcustody.policy import facts_of, load_policy
from kvcustody.policy.tooling.answers import Answers, deployed_by
from kvcustody.wiring import load_decisions


def load_answers(settings: Settings, policy: Path | None = None) -> Answers:
    """The answers of a deployment.

    Args:
        settings: custody.yaml.
        policy: a CSV file to read instead of the deployment's own policy.

    Raises:
        ConfigurationError: the policy can't be read, or a line of it is wrong.
        UnavailableError: where the policy is can't be reached.

    """
    if policy is None:
        decisions = load_decisions(settings)
    else:
        decisions = load_policy(policy, settings.authorization.model, facts_of(settings))
    return Answers(decisions, deployed_by(settings))
