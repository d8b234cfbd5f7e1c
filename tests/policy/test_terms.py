"""A rule's last field: what it may ask for, and how it is said that it can't be read."""

import pytest

from kvcustody.policy.facts import UNKNOWN_MODEL, Context, ModelFacts, TenantFacts, TierFacts
from kvcustody.policy.terms import MODEL_FACTS, UNLIMITED, Limits, parse_terms, strictest

pytestmark = pytest.mark.unit

LEVELS = ("public", "internal", "secret")
TENANT = TenantFacts(1)
TIER = TierFacts("s3", 2, region="eu-central-1")
LLAMA = ModelFacts("llama-8b", "r7", "support-v1")
PLAIN = ModelFacts("llama-8b", "r7")
KNOWN = Context(TENANT, TIER, LLAMA)
NOTHING = Context(None, None, UNKNOWN_MODEL)


def holds(terms: str, context: Context = KNOWN) -> bool:
    return parse_terms(terms, LEVELS).unmet(context) is None


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("model=llama-8b", True),
        ("model=llama-8", False),
        ("model=lama-8b", False),
        ("model=LLAMA-8b", False),
        ("model=llama-*", True),
        ("model=*-8b", True),
        ("model=*-8", False),
        ("model=llama-?b", True),
        ("model=llama-[0-9]b", False),
        ("model=llama-[a-z]b", False),
        ("model=*", True),
        ("model=qwen|llama-8b", True),
        ("model=qwen|llama-*", True),
        ("model=qwen-*|mistral", False),
        ("model=qwen-*|llama-*", True),
        ("model=llama-*|qwen-*", True),
        ("model!=llama-8b", False),
        ("model!=qwen", True),
        ("model!=qwen|llama-*", False),
        ("revision=r7", True),
        ("revision=r8", False),
        ("revision!=r8", True),
        ("region=eu-*", True),
        ("region=us-*|eu-central-1", True),
        ("region!=eu-*", False),
        ("region=eu", False),
        ("model=llama.8b", False),
        ("*", True),
    ],
)
def test_a_condition_holds_if_the_fact_is_as_it_says(terms: str, expected: bool) -> None:
    assert holds(terms) is expected


@pytest.mark.parametrize("fact", ["model", "revision", "region"])
@pytest.mark.parametrize("pattern", ["*", "none", "any", "None", ""])
def test_what_is_not_known_matches_no_pattern(fact: str, pattern: str) -> None:
    assert not holds(f"{fact}={pattern or 'x'}", NOTHING)
    assert holds(f"{fact}!={pattern or 'x'}", NOTHING)


def test_a_tier_without_a_region_is_in_none() -> None:
    somewhere = Context(TENANT, TierFacts("s3", 2), LLAMA)
    assert not holds("region=*", somewhere)
    assert holds("region!=eu-*", somewhere)


@pytest.mark.parametrize(
    ("terms", "with_adapter", "without"),
    [
        ("lora=none", False, True),
        ("lora=any", True, False),
        ("lora!=none", True, False),
        ("lora!=any", False, True),
        ("lora=support-*", True, False),
        ("lora=support-v1", True, False),
        ("lora=sales-*", False, False),
        ("lora!=sales-*", True, True),
        ("lora=sales-*|none", False, True),
        ("lora=support-*|none", True, True),
        ("lora=any|none", True, True),
        ("lora!=any|none", False, False),
    ],
)
def test_an_adapter_is_asked_for_by_none_any_or_its_name(
    terms: str, with_adapter: bool, without: bool
) -> None:
    assert holds(terms) is with_adapter
    assert holds(terms, Context(TENANT, TIER, PLAIN)) is without


def test_only_an_adapter_has_the_words_none_and_any() -> None:
    named = Context(TENANT, TIER, ModelFacts("none", "any"))
    assert holds("model=none revision=any", named)
    assert not holds("model=any", named)
    by_that_name = Context(TENANT, TIER, ModelFacts("llama-8b", "r7", "none"))
    assert not holds("lora=none", by_that_name)
    assert not holds("lora=none|support-*", by_that_name)
    assert holds("lora=any", by_that_name)
    assert not holds("revision=none", named)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("=", [False, True, False]),
        ("!=", [True, False, True]),
        ("<=", [True, True, False]),
        (">=", [False, True, True]),
    ],
)
def test_a_classification_is_compared_by_its_rank(operator: str, expected: list[bool]) -> None:
    term = f"classification{operator}internal"
    ranks = range(len(LEVELS))
    assert [holds(term, Context(TenantFacts(rank), TIER, LLAMA)) for rank in ranks] == expected


@pytest.mark.parametrize("operator", ["=", "!=", "<=", ">="])
def test_who_is_no_tenant_has_no_classification(operator: str) -> None:
    assert not holds(f"classification{operator}internal", NOTHING)


def test_all_conditions_must_hold_and_the_first_that_does_not_is_named() -> None:
    terms = parse_terms("model=llama-* revision=r8 lora=none", LEVELS)
    unmet = terms.unmet(KNOWN)
    assert unmet is not None
    assert (unmet.text, unmet.fact) == ("revision=r8", "revision")
    assert holds("model=llama-* revision=r7 lora=any classification=internal region=eu-*")
    assert not holds("model=llama-* classification=secret")


def test_each_condition_says_which_fact_it_asks_for() -> None:
    text = "model=a revision=b lora=c region=d classification=public"
    conditions = parse_terms(text, LEVELS).conditions
    assert [each.fact for each in conditions] == [
        "model",
        "revision",
        "lora",
        "region",
        "classification",
    ]
    assert " ".join(each.text for each in conditions) == text
    assert {"model", "revision", "lora"} == MODEL_FACTS


def test_a_limit_is_no_condition() -> None:
    terms = parse_terms("ttl<=1h quota<=2GiB", LEVELS)
    assert terms.conditions == ()
    assert terms.limits == Limits(ttl=3600.0, quota=2 * 2**30)
    assert parse_terms("ttl<=90s", LEVELS).limits == Limits(ttl=90.0)
    assert parse_terms("quota<=1000", LEVELS).limits == Limits(quota=1000)


def test_limits_and_conditions_stand_in_any_order() -> None:
    terms = parse_terms("ttl<=1h model=llama-* quota<=1GiB region=eu-*", LEVELS)
    assert [each.text for each in terms.conditions] == ["model=llama-*", "region=eu-*"]
    assert terms.limits == Limits(3600.0, 2**30)


def test_terms_without_a_limit_are_not_limited() -> None:
    for text in ("*", "model=a", ""):
        assert parse_terms(text, LEVELS).limits == UNLIMITED
    assert parse_terms("*", LEVELS).conditions == ()


def test_of_the_same_limit_twice_the_strictest_counts() -> None:
    assert parse_terms("ttl<=2h ttl<=1h ttl<=3h", LEVELS).limits == Limits(ttl=3600.0)
    assert parse_terms("quota<=2KiB quota<=1KiB", LEVELS).limits == Limits(quota=1024)


def test_each_limit_is_the_strictest_of_its_own_kind() -> None:
    assert strictest([Limits(5.0, 10), Limits(9.0, 3), Limits()]) == Limits(5.0, 3)
    assert strictest([Limits(5.0), Limits(None, 3)]) == Limits(5.0, 3)
    assert strictest([Limits(), Limits(7.0)]) == Limits(7.0, None)
    assert strictest([Limits(None, 7)]) == Limits(None, 7)
    assert strictest(iter([Limits(), Limits()])) is UNLIMITED
    assert strictest([]) is UNLIMITED


FORMS = (
    "model, revision, lora or region with = or != and a pattern; classification with =, !=, <= or "
    ">= and a level; ttl<=1h; quota<=10GiB"
)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("always", f"'always' is no term; write {FORMS}"),
        ("model", f"'model' is no term; write {FORMS}"),
        ("model=", f"'model=' is no term; write {FORMS}"),
        ("=llama", f"'=llama' is no term; write {FORMS}"),
        ("Model=llama", f"'Model=llama' is no term; write {FORMS}"),
        ("ttl<1h", f"'ttl<1h' is no term; write {FORMS}"),
        ("ttl≤1h", f"'ttl≤1h' is no term; write {FORMS}"),
        ("mоdel=llama", f"'mоdel=llama' is no term; write {FORMS}"),  # noqa: RUF001 - a look-alike
        ("tenant=acme", f"'tenant=acme': unknown term 'tenant'; write {FORMS}"),
        ("ttl=1h", "'ttl=1h': a limit is written ttl<=…"),
        ("ttl>=1h", "'ttl>=1h': a limit is written ttl<=…"),
        ("quota!=1GiB", "'quota!=1GiB': a limit is written quota<=…"),
        ("model<=llama", "'model<=llama': model takes = or !="),
        ("region>=eu", "'region>=eu': region takes = or !="),
        (
            "classification=hidden",
            "'classification=hidden': unknown classification; use one of public, internal, secret",
        ),
        (
            "classification=Secret",
            "'classification=Secret': unknown classification; use one of public, internal, secret",
        ),
        (
            "ttl<=1",
            "'ttl<=1': write a duration with its unit, such as 200ms, 60s, 1h or 7d",
        ),
        ("ttl<=0s", "'ttl<=0s': a duration must be longer than zero and at most ten years"),
    ],
)
def test_what_can_not_be_read_is_named_with_what_to_write(word: str, message: str) -> None:
    for text in (word, f"model=a {word} lora=none"):
        with pytest.raises(ValueError, match=r".") as caught:
            parse_terms(text, LEVELS)
        assert str(caught.value) == message


def test_a_size_that_can_not_be_read_is_named() -> None:
    with pytest.raises(ValueError, match=r"^'quota<=much': "):
        parse_terms("quota<=much", LEVELS)


def test_a_star_beside_other_terms_is_no_term() -> None:
    with pytest.raises(ValueError, match=r"^'\*' is no term"):
        parse_terms("* ttl<=1h", LEVELS)


@pytest.mark.parametrize("pattern", ["beta[1]", "beta[?]", "*[1]"])
def test_a_bracket_is_a_part_of_a_name_and_no_wildcard(pattern: str) -> None:
    terms = parse_terms(f"model={pattern}", ("public",))
    for name, counts in (("beta[1]", True), ("beta1", False)):
        context = Context(None, None, ModelFacts(name))
        assert (terms.unmet(context) is None) is counts
