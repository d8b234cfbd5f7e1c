"""A policy that a Casbin adapter reads, from a database for example."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.policy.adapter_errors import explain_adapter_error
from kvcustody.policy.adapter_model import ReceivingModel, rules_of, shown
from kvcustody.policy.decisions import Decisions
from kvcustody.policy.loading import compile_policy, facts_of, read_model, unenforced_tenants
from kvcustody.policy.rules import Pause, RuleSet, never_pause

# Longer than a bounded connection waits; a million rows take as long.
_PATIENCE_SECONDS = 30.0


class CasbinAdapter(Protocol):
    """What we need of a Casbin adapter."""

    def load_policy(self, model: ReceivingModel, /) -> object:
        """Put all rules into a model."""


class AdapterPolicy:
    """A policy that an adapter reads again whenever `refresh` has passed.

    Args:
        settings: custody.yaml.
        name: names the adapter in messages and in the names of rules.
        adapter: makes it, or finds the one that was made before.
        refresh: seconds from the end of one reading to the next.
        clock: seconds that pass.
        patience: seconds to wait for the adapter.

    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        adapter: Callable[[], CasbinAdapter],
        *,
        refresh: float,
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._model_file = settings.authorization.model
        self._facts = facts_of(settings)
        self._unenforced = unenforced_tenants(settings)
        self._name = name
        self._place = Path(name)
        self._adapter = adapter
        self._refresh = refresh
        self._clock = clock
        self._patience = patience
        self._due = math.inf
        self._generation = 0
        self._reading: _Reading | None = None
        self._last: tuple[tuple[str, bytes], Decisions] | None = None

    def signature(self) -> object:
        """A number that changes when it is time to read again.

        It stays the same during a reading, however long that takes: otherwise a slow database would
        never be followed.
        """
        if self._clock() >= self._due:
            self._generation += 1
            self._due = math.inf
        return self._generation

    def load(self, pause: Pause = never_pause) -> Decisions:
        """Read, check and compile the policy.

        Args:
            pause: called now and then.

        Raises:
            ConfigurationError: the adapter, the model or a rule is wrong.
            UnavailableError: what the adapter reads can't be reached.

        """
        try:
            return self._load(pause)
        finally:
            self._due = self._clock() + self._refresh

    def _load(self, pause: Pause) -> Decisions:
        model_text = read_model(self._model_file)
        rule_set = rules_of(self._read(), self._place, pause)
        key = model_text, rule_set.digest
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        try:
            decisions = compile_policy(rule_set, model_text, self._facts, self._unenforced, pause)
        except ConfigurationError as error:
            raise _with_row(error, rule_set) from None
        self._last = key, decisions
        return decisions

    def _read(self) -> ReceivingModel:
        """Have the adapter load its rules, without waiting for it for ever."""
        if self._reading is None:
            self._reading = _Reading(self._adapter)
            self._reading.start()
        reading = self._reading
        reading.join(self._patience)
        if reading.is_alive():
            # The next attempt waits for the same one: a thread for each would pile up.
            raise UnavailableError(f"{self._name}: no answer")
        self._reading = None
        if reading.error is not None:
            raise explain_adapter_error(reading.error, self._name) from None
        return reading.model


class _Reading(threading.Thread):
    """An adapter at work, in a thread that can be left to itself.

    Args:
        adapter: makes the adapter.

    """

    def __init__(self, adapter: Callable[[], CasbinAdapter]) -> None:
        super().__init__(name="kvcustody-policy-adapter", daemon=True)
        self._adapter = adapter
        self.model = ReceivingModel()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Load the rules; what goes wrong is kept for whoever waits."""
        try:
            self._adapter().load_policy(self.model)
        except BaseException as error:  # noqa: BLE001 - half of a policy must not pass for all
            # Without the traceback, whose frames hold passwords and rows.
            self.error = error.with_traceback(None)


def _with_row(error: ConfigurationError, rule_set: RuleSet) -> ConfigurationError:
    """The error, with the row it is about: its number helps nobody to find it in a table."""
    for rule in rule_set.rules:
        if rule.line == error.line:
            message = f"{error.message}; the row: {shown(rule.text)}"
            return ConfigurationError(message, error.file, error.line, error.field)
    return error
