"""Who has which roles, directly or through other roles."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from kvcustody.errors import ConfigurationError
from kvcustody.policy.rules import Pause, Rule, in_slices, never_pause

MOST_LEVELS = 8
"""How many links may lead from a member to the role that a rule names.

Casbin follows nine, one of which leads from a workload to its tenant.
"""


class Roles:
    """The members of a policy's roles.

    Args:
        rules: the policy's rules, of which those that start with `g` count.
        pause: called now and then.
        without: places in `rules` of those that don't count.

    """

    def __init__(
        self,
        rules: Sequence[Rule],
        pause: Pause = never_pause,
        without: Container[int] = frozenset(),
    ) -> None:
        self._rules = rules
        # Each member's roles, with the places of the rules that give them.
        roles: dict[str, dict[str, int]] = {}
        for place, rule in enumerate(in_slices(rules, pause)):
            if rule.kind == "g" and place not in without:
                member, role = rule.fields[:2]
                roles.setdefault(member, {}).setdefault(role, place)
        self._roles: Mapping[str, Mapping[str, int]] = roles
        self._pause = pause

    def members(self) -> Iterable[str]:
        """All names that have a role."""
        return self._roles.keys()

    def parts(self) -> Iterable[object]:
        """What it is made of."""
        return self._roles.values()

    def of(self, names: Iterable[str]) -> frozenset[str]:
        """The names, and all roles that one of them has."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._roles.get(name, ())
        return frozenset(found)

    def problems(self) -> Iterator[ConfigurationError]:
        """Cycles, and roles of roles beyond `MOST_LEVELS`."""
        levels: dict[str, int] = {}
        for start in in_slices(self._roles, self._pause):
            yield from self._measure(start, levels)

    def _measure(self, start: str, levels: dict[str, int]) -> Iterator[ConfigurationError]:
        """Walk up from one member, depth first, and note how many levels lie above each name."""
        path: dict[str, Iterator[str]] = {}
        if start not in levels:
            path[start] = iter(self._roles[start])
        while path:
            name = next(reversed(path))
            role = next(path[name], None)
            if role is None:
                del path[name]
                above = [levels.get(each, 0) for each in self._roles.get(name, ())]
                levels[name] = 1 + max(above) if above else 0
                if levels[name] == MOST_LEVELS + 1:
                    yield self._problem(
                        (name, next(iter(self._roles[name]))),
                        f"'{name}' has roles nested more than {MOST_LEVELS} deep",
                    )
            elif role in path:
                names = [*list(path)[list(path).index(role) :], role]
                yield self._problem((name, role), f"roles in a circle: {' → '.join(names)}")
            elif role not in levels:
                path[role] = iter(self._roles.get(role, ()))

    def _problem(self, link: tuple[str, str], message: str) -> ConfigurationError:
        member, role = link
        rule = self._rules[self._roles[member][role]]
        return ConfigurationError(message, rule.file, rule.line)
