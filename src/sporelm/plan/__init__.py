"""From a traced graph to something that runs: rewriting rules, memory placed once, one program per regime."""

from sporelm.plan.memory import ALIGNMENT, Lifetime, Placed, place
from sporelm.plan.plan import Plan
from sporelm.plan.rules import RULES, rewrite

__all__ = ["ALIGNMENT", "RULES", "Lifetime", "Placed", "Plan", "place", "rewrite"]
