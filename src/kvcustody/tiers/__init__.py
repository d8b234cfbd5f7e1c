"""Tiers under custody: sealed, bounded in time, accounted for."""

from kvcustody.tiers.governed import GovernedTier
from kvcustody.tiers.jobs import JobOutcome, Slot
from kvcustody.tiers.presence import Presence

__all__ = ["GovernedTier", "JobOutcome", "Presence", "Slot"]
