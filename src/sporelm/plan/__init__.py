"""Plans: graph rewriting, memory planning, and one program per step bucket."""

from sporelm.plan import fusion  # noqa: F401 - importing it registers the rules
from sporelm.plan.memory_planner import ALIGNMENT, ArenaOffsets, Lifetime, plan_offsets
from sporelm.plan.plan import Plan
from sporelm.plan.rewrite_rules import RULES, rewrite

__all__ = ["ALIGNMENT", "RULES", "ArenaOffsets", "Lifetime", "Plan", "plan_offsets", "rewrite"]
