"""How a benchmark says what it found: one line a figure, `name: figure unit (goal …) ok` or `… short`."""


def report(name: str, figure: float, unit: str, goal: float, *, at_least: bool = False) -> bool:
    """Print one figure; True when it reaches its goal."""
    good = figure >= goal if at_least else figure <= goal
    amount = f"{figure:.3g} {unit}".strip()
    print(f"{name}: {amount} (goal {'≥' if at_least else '≤'} {goal:g}) {'ok' if good else 'short'}", flush=True)
    return good
