"""The policy in force, and its replacement while requests go on.

A new version takes the place of the old one in one step, after it was read, checked and compiled
aside. A version with a mistake changes nothing: the last good one stays.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kvcustody.errors import CustodyError, UnavailableError
from kvcustody.identity.principal import Principal
from kvcustody.policy.decisions import Decision, Decisions
from kvcustody.policy.rules import Pause, in_slices, let_others_run, short_turns

_POLL_SECONDS = 0.5
# The engine has five seconds to end in, of which the audit trail needs some.
_CLOSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class PolicyInForce:
    """Holds the decisions that count now.

    Args:
        decisions: the first version.

    """

    def __init__(self, decisions: Decisions) -> None:
        self.current = decisions

    @property
    def version(self) -> str:
        """The version in force."""
        return self.current.version

    def may_share(self, principal: Principal, group: str) -> Decision:
        """Whether the principal may use a sharing group's namespace now."""
        return self.current.may_share(principal, group)


class PolicySource(Protocol):
    """Where a policy comes from."""

    def signature(self) -> object:
        """Something that changes when the policy may have changed; never raises."""

    def load(self, pause: Pause) -> Decisions:
        """Read, check and compile the policy.

        Args:
            pause: called now and then, so that other threads get their turn.

        Raises:
            ConfigurationError: the policy is wrong, or can't be read.
            UnavailableError: where it is can't be reached.

        """


class PolicyWatch:
    """Looks for a new version of the policy, and puts it in force.

    Looking at files is a matter of `stat`, which works on any file system, and for links that are
    swung over to another folder (Kubernetes).

    Args:
        policy: what to keep up to date.
        source: where the policy comes from.
        signature: the source's signature before the first version was loaded.
        on_loaded: told the version before, once another is in force.
        on_rejected: told why a new version is not put in force.

    """

    def __init__(
        self,
        policy: PolicyInForce,
        source: PolicySource,
        signature: object,
        *,
        on_loaded: Callable[[str], None],
        on_rejected: Callable[[CustodyError], None],
    ) -> None:
        self._policy = policy
        self._source = source
        self._on_loaded = on_loaded
        self._on_rejected = on_rejected
        self._loaded = self._seen = signature
        self._rejected: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvcustody-policy", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def look(self) -> None:
        """Put a new version in force if there is one, and nobody is writing it just now.

        A file that is being written may hold the first half of its rules, and be a valid policy. So
        what changed since the last look is left alone until the next.
        """
        signature = self._source.signature()
        settled, self._seen = signature == self._seen, signature
        if settled and signature != self._loaded:
            self._load(signature)

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                self.look()
            except Exception:
                logger.exception("The policy could not be looked at; the last good one stays")

    def _load(self, signature: object) -> None:
        try:
            with short_turns():
                decisions = self._source.load(let_others_run)
        except CustodyError as error:
            self._loaded = signature
            self._reject(error)
            return
        if self._stop.is_set():
            return  # a source that answers late finds nobody in
        if self._source.signature() != signature:
            return  # changed under our eyes; the next look reads it again
        self._loaded = signature
        self._rejected = None
        old = self._policy.current
        if decisions.version != old.version:
            self._policy.current = decisions
            self._on_loaded(old.version)
            with short_turns():
                parts = list(in_slices(old.parts(), let_others_run))
                # The last of those who were asking it lets go of the whole; then the parts go.
                del old
                for _ in in_slices(range(len(parts)), let_others_run):
                    parts.pop()

    def _reject(self, error: CustodyError) -> None:
        # What is away for hours says so in several ways, and is one piece of news.
        away = isinstance(error, UnavailableError)
        reason = type(error).__name__ if away else str(error)
        if reason != self._rejected and not self._stop.is_set():
            self._rejected = reason
            self._on_rejected(error)
