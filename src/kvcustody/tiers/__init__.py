"""Tiers under custody: sealed, bounded in time, accounted for."""

from kvcustody.tiers.counters import Count
from kvcustody.tiers.governed import GovernedTier
from kvcustody.tiers.jobs import JobOutcome, Slot
from kvcustody.tiers.presence import Presence

__all__ = ["Count", "GovernedTier", "JobOutcome", "Presence", "Slot"]
