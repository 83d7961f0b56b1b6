"""What reports of training and of evaluation share: CSS rules, percentages, a confidence interval."""

import math

STYLE = """
pre { margin: 0 0 10px; padding: 10px 14px; background: var(--page); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 13px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }
picture img { display: block; width: 100%; height: auto; }
.heat { margin: 0 auto 14px; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(108px, 1fr)); gap: 14px; }
.samples figure { width: auto; }
.samples img { width: 100%; height: 108px; border: 2px solid var(--line); margin-bottom: 4px; }
.samples .wrong img { border: 4px double var(--bad); }
.samples .wrong b { color: var(--bad); }
td .bar { width: 200px; background: var(--line); margin-top: 5px; }
td.number { white-space: nowrap; }
details { margin-top: 12px; }
details:first-child { margin-top: 0; }
summary { cursor: pointer; color: var(--soft); }
@media (max-width: 520px) {
  main { padding: 20px 12px 40px; }
  section { padding: 14px; }
  .share { display: none; }
}
"""
"""CSS rules besides those of `page.page`."""


def percent(fraction: float) -> str:
    """Formats a fraction of 1 as a percentage: with one digit after the point, near 100 % (but not at it) with two."""
    return f"{fraction:.1%}" if fraction < 0.995 or fraction == 1 else f"{fraction:.2%}"


def interval(fraction: float, n: int) -> tuple[float, float]:
    """Computes the 95 % confidence interval (low, high) of a fraction observed in `n` samples.

    It is Wilson's interval, which unlike the usual one does not shrink to nothing where the fraction is near 0 or 1.
    """
    z = 1.96
    centre = (fraction + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
