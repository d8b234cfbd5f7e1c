"""Custody for vLLM's class `LLM`, where no gateway stands in front: who a batch is for, and proof.

Whoever runs such a program holds the deployment's keys, so the program itself says for whom each
prompt is, and signs it. An assertion holds for one engine request, and `LLM` numbers its requests,
so what is made here is made prompt by prompt, at the moment when vLLM takes it.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, overload

from kvcustody.admission import Salts
from kvcustody.audit import AuditLog
from kvcustody.config import Settings, connector_config, load_settings
from kvcustody.config.values import NAME_FORM, is_name
from kvcustody.errors import ConfigurationError
from kvcustody.identity.assertion import ASSERTION_PARAMETER, AssertionSigner
from kvcustody.identity.principal import Principal, is_canonical
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.policy import PolicyInForce, Sharing
from kvcustody.sealing import ServiceKey
from kvcustody.wiring import load_decisions, load_sharing, open_audit, open_keys

# A pooling request of a large batch waits in vLLM's client until those before it are done.
_TTL_SECONDS = 3600.0
_LONGEST_TTL_SECONDS = 86_400.0
_DEFAULT_WORKLOAD = "default"
# What the audit trail has for a path, as no route was taken.
_PATH = "offline"
_TRANSFER = "kv_transfer_params"


class _Counter(Protocol):
    @property
    def counter(self) -> int: ...


class NumbersRequests(Protocol):
    """What is needed of vLLM's `LLM`: the number of its next request."""

    @property
    def request_counter(self) -> _Counter:
        """vLLM's counter, whose `counter` is the next number."""


class TakesArguments(Protocol):
    """What is needed of vLLM's `SamplingParams`: arguments that reach the connector."""

    extra_args: dict[str, Any] | None


Prompt = str | list[int] | Mapping[str, Any]
"""A prompt as vLLM takes it: text, tokens, or a dictionary with either."""

_Item = TypeVar("_Item")
_Parameters = TypeVar("_Parameters", bound=TakesArguments)


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """For whom a prompt is; made by `OfflineCustody.on_behalf_of`.

    Args:
        principal: for whom.
        group: the sharing group whose namespace it uses; `None` for the principal's own.

    """

    principal: Principal
    group: str | None


class OfflineCustody:
    """Signs what a program asks of vLLM's `LLM`.

    Args:
        settings: custody.yaml.
        signer: signs assertions.
        tickets: issues salt tickets.
        salts: the cache salt of a principal or sharing group.
        sharing: who may use a sharing group's namespace.
        audit: the program's audit stream.
        close: ends that stream.

    """

    def __init__(
        self,
        settings: Settings,
        *,
        signer: AssertionSigner,
        tickets: SaltTickets,
        salts: Salts,
        sharing: Sharing,
        audit: AuditLog,
        close: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._signer = signer
        self._tickets = tickets
        self._salts = salts
        self._sharing = sharing
        self._audit = audit
        self._close = close
        self._closed = False

    @classmethod
    def from_config(cls, path: Path | str | None = None, *, ttl: float = _TTL_SECONDS) -> Self:
        """Custody as custody.yaml says.

        Args:
            path: custody.yaml; without it, the one that `KVCUSTODY_CONFIG` names.
            ttl: seconds that a prompt may wait for the engine.

        Raises:
            ConfigurationError: custody.yaml, or a file that it names, is wrong.
            UnavailableError: the registry or the key provider can't be reached.

        """
        if not 0 < ttl <= _LONGEST_TTL_SECONDS:
            raise ConfigurationError("use more than 0 and at most 86400 seconds", field="ttl")
        settings = load_settings(None if path is None else Path(path))
        policy = PolicyInForce(load_decisions(settings))
        with closing(open_keys(settings)) as keys:
            assertion_key = keys.keyring.service_key(ServiceKey.ASSERTION)
            salt_key = keys.keyring.service_key(ServiceKey.CACHE_SALT)
            audit = open_audit(settings, keys.keyring, "offline", policy)
        return cls(
            settings,
            signer=AssertionSigner(assertion_key, settings.deployment, ttl),
            tickets=SaltTickets(assertion_key, ttl),
            salts=Salts(settings.tenants, settings.deployment, salt_key),
            sharing=load_sharing(settings, policy),
            audit=audit,
            close=audit.close,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the audit stream; nothing is signed any more. Safe to call twice."""
        self._closed = True
        self._close()

    @property
    def kv_transfer_config(self) -> dict[str, Any]:
        """What `LLM(kv_transfer_config=...)` takes: the connector, with this custody.yaml."""
        file = self._settings.places.file
        assert file is not None, "the settings were read from a file"  # noqa: S101 - from_config
        return connector_config(file)

    def on_behalf_of(
        self,
        tenant: str,
        workload: str = _DEFAULT_WORKLOAD,
        *,
        subject: str | None = None,
        group: str | None = None,
    ) -> OnBehalf:
        """For whom prompts are.

        Args:
            tenant: a tenant of custody.yaml.
            workload: what the tenant uses the engine for.
            subject: the data subject that the prompts are about, if any.
            group: the sharing group whose namespace they use, if not the tenant's own.

        Raises:
            ConfigurationError: there is no such tenant, a name is not well formed, or the group
                can't be used.

        """
        tenants = self._settings.tenants
        if tenant not in tenants:
            raise self._wrong("tenant", f"unknown tenant {tenant!r}; it has {', '.join(tenants)}")
        if not is_name(workload):
            raise self._wrong("workload", NAME_FORM)
        if subject is not None:
            subject = unicodedata.normalize("NFC", subject)
            if not is_canonical(subject):
                raise self._wrong("subject", "use 1 to 256 printable characters")
        elif tenants[tenant].scope == "subject":
            raise self._wrong("subject", f"'{tenant}' keeps a cache for each; name the prompts'")
        principal = Principal(tenant, workload, subject)
        if group is not None and (refusal := self._sharing.refusal(principal, group)) is not None:
            raise self._wrong("group", f"this tenant can't use it ({refusal.value})")
        return OnBehalf(principal, group)

    def sampling_params(
        self,
        llm: NumbersRequests,
        params: _Parameters | Sequence[_Parameters],
        on_behalf: Sequence[OnBehalf],
    ) -> "Batch[_Parameters]":
        """Sampling parameters for `generate`, `chat`, `enqueue` or `enqueue_chat`, one a prompt.

        Args:
            llm: the engine that the prompts go to.
            params: vLLM's `SamplingParams`, for all prompts or one a prompt; not changed.
            on_behalf: for whom each prompt is, in the prompts' order.

        Raises:
            ConfigurationError: the numbers of parameters and of prompts differ.

        """
        given = params if isinstance(params, Sequence) else [params] * len(on_behalf)
        _check_lengths(len(given), len(on_behalf))
        pairs = zip(given, on_behalf, strict=True)
        # Copies, one for each request: vLLM changes what it is given.
        items = [(copy(each), each.extra_args, who) for each, who in pairs]

        def sign(index: int, request_id: str) -> _Parameters:
            own, extra, who = items[index]
            assertion = self._assertion(who, request_id)
            transfer = {**((extra or {}).get(_TRANSFER) or {}), ASSERTION_PARAMETER: assertion}
            own.extra_args = {**(extra or {}), _TRANSFER: transfer}
            return own

        return Batch(llm, range(len(items)), sign)

    def salted_prompts(
        self, llm: NumbersRequests, prompts: Sequence[Prompt], on_behalf: Sequence[OnBehalf]
    ) -> "Batch[dict[str, Any]]":
        """Prompts for `embed`, `classify` or `encode`, whose requests can carry no assertion.

        They read the GPU prefix cache of their own scope, and neither load from nor store to a
        tier, as through the gateway.

        Args:
            llm: the engine that the prompts go to.
            prompts: vLLM's prompts.
            on_behalf: for whom each prompt is, in the prompts' order.

        Raises:
            ConfigurationError: the numbers of prompts and of `on_behalf` differ.

        """
        _check_lengths(len(prompts), len(on_behalf))

        def salt(index: int, request_id: str) -> dict[str, Any]:
            ticket = self._ticket(on_behalf[index], request_id)
            return {**_as_dictionary(prompts[index]), "cache_salt": ticket}

        return Batch(llm, range(len(prompts)), salt)

    def _assertion(self, who: OnBehalf, request_id: str) -> str:
        self._account_for(who, request_id)
        return self._signer.sign(
            who.principal,
            request_id=request_id,
            salt=self._salts(who.principal, who.group),
            group=who.group,
        )

    def _ticket(self, who: OnBehalf, request_id: str) -> str:
        self._account_for(who, request_id)
        return self._tickets.issue(self._salts(who.principal, who.group), request_id)

    def _account_for(self, who: OnBehalf, request_id: str) -> None:
        if self._closed:
            raise ConfigurationError("closed already; call vLLM inside the `with` block")
        self._audit.record(
            "request.accepted",
            tenant=who.principal.tenant,
            workload=who.principal.workload,
            request_id=request_id,
            action="assert",
            outcome="ok",
            path=_PATH,
            group=who.group,
        )

    def _wrong(self, field: str, message: str) -> ConfigurationError:
        return ConfigurationError(message, self._settings.places.file, field=field)


class Batch(Sequence[_Item]):
    """What vLLM takes for a batch, made for each request when vLLM takes it.

    vLLM goes through a batch from its first item, and numbers its requests in that order. A batch
    may be given to it again.

    Args:
        llm: the engine, which knows the number of its next request.
        places: which of the items belong to this batch.
        make: makes an item for a request, by its place and the request's id.

    """

    def __init__(
        self, llm: NumbersRequests, places: range, make: Callable[[int, str], _Item]
    ) -> None:
        self._llm = llm
        self._places = places
        self._make = make
        self._first: int | None = None

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> "Batch[_Item]": ...

    def __getitem__(self, index: int | slice) -> "_Item | Batch[_Item]":
        if isinstance(index, slice):
            return Batch(self._llm, self._places[index], self._make)
        place = self._places[index]
        number = index % len(self._places)
        if self._first is None or number == 0:
            self._first = self._llm.request_counter.counter
        return self._make(place, str(self._first + number))


def _as_dictionary(prompt: Prompt) -> Mapping[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt


def _check_lengths(given: int, on_behalf: int) -> None:
    if given != on_behalf:
        raise ConfigurationError(
            f"{given} given, but {on_behalf} say for whom; name one for each prompt",
            field="on_behalf",
        )
