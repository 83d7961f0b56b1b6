"""What the reports of trainings and evaluations share: their style, shares in words, an interval."""

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


def percent(share: float) -> str:
    """As many digits as tell 99.9 from 100."""
    return f"{share:.1%}" if share < 0.995 or share == 1 else f"{share:.2%}"


def interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval, which stays honest near 0 and 1 where accuracies live."""
    z = 1.96
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
