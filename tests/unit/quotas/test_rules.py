"""Rules of tenants: what may be set, how it is kept, and how long it is believed."""

from qim_streams.errors import StoreUnavailable
from qim_streams.quotas.rules import NO_RULES, TenantRules, check, fields_of, rules_of
from qim_streams.quotas.service import RulesCache


def test_rules_survive_being_kept() -> None:
    for rules in (NO_RULES, TenantRules(0), TenantRules(5, "newest"), TenantRules(None, "platform")):
        assert check(rules) is None
        assert rules_of(fields_of(rules)) == rules


def test_wrong_rules_are_named_and_wrong_fields_count_as_unset() -> None:
    assert "fanout_per_s" in (check(TenantRules(-1)) or "")
    assert "fanout_per_s" in (check(TenantRules(10**9 + 1)) or "")
    assert "multi_login" in (check(TenantRules(None, "some")) or "")
    assert rules_of({"fanout_per_s": "-3", "multi_login": "some", "later": "x"}) == NO_RULES
    assert rules_of({"fanout_per_s": "²"}) == NO_RULES


async def test_rules_are_believed_for_a_moment_and_when_the_store_is_away() -> None:
    now, rules, reads = [0], TenantRules(1), 0

    class Store:
        async def get(self, tenant_id: str) -> TenantRules:
            nonlocal reads
            reads += 1
            if rules == NO_RULES:
                raise StoreUnavailable("away")
            return rules

        async def put(self, tenant_id: str, rules: TenantRules) -> None:
            raise AssertionError

    cache = RulesCache(Store(), lambda: now[0])
    assert [(await cache.of("a")).fanout_per_s for _ in range(3)] == [1, 1, 1]
    rules = TenantRules(2)
    assert (await cache.of("a")).fanout_per_s == 1
    assert reads == 1
    now[0] = 5_000
    assert (await cache.of("a")).fanout_per_s == 2
    now[0], rules = 10_000, NO_RULES
    assert (await cache.of("a")).fanout_per_s == 2, "as last seen"
    assert await cache.of("b") == NO_RULES
