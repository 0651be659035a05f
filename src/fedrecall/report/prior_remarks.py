"""Which accuracy a method's prior favours on an unbalanced test set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedrecall.report.wording import join_words

MEANT_FOR = {
    "pooled": "meant for the class shares of all clients together, which favours accuracy over samples",
    "uniform": "meant for equal class shares, which favours accuracy by class",
    "given": "meant for the class shares that were given",
}


def balanced(summaries: Iterable[Mapping[str, Any]]) -> bool:
    """Whether accuracy over samples equals accuracy by class, as on a test set with equal class sizes."""
    pairs = [(summary.get("final_accuracy"), summary.get("final_accuracy_macro")) for summary in summaries]
    return all(a is None or b is None or abs(a - b) < 1e-9 for a, b in pairs)


def prior_remark(meant_for: Mapping[str, str]) -> str:
    """Return a sentence on the class shares that each method is meant for, as far as they are known."""
    parts = []
    for kind, words in MEANT_FOR.items():
        names = [name for name, found in meant_for.items() if found == kind]
        if names:
            parts.append(f"{join_words(names)} {'are' if len(names) > 1 else 'is'} {words}")
    return f"The test set is not balanced: {'; '.join(parts)}." if parts else "The test set is not balanced."
