"""Learning curves as one SVG: a panel per set, the mean over seeds, and a band of 95 % for two strategies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import t

from experiments.benchmark.statistics import Results, Values

WIDTH, HEIGHT, LEFT, TOP, COLUMNS = 300, 210, 40, 28, 3
COLORS = {
    "bico": "#c2410c",
    "uniform": "#475569",
    "uncertainty_herding": "#2563eb",
    "margin": "#16a34a",
    "typiclust": "#9333ea",
}
OTHER = "#cbd5e1"


def _points(xs: Values, ys: Values) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def panel(results: Results, name: str) -> str:
    """The elements of one set, at the origin."""
    curves = {s: results.values(name, s) for s in results.strategies}
    low = min(float(values.mean(0).min()) for values in curves.values())
    high = max(float(values.mean(0).max()) for values in curves.values())
    span = max(high - low, 1.0)
    inner_width, inner_height = WIDTH - LEFT - 12, HEIGHT - TOP - 30
    counts = np.array(results.counts, float)
    xs = LEFT + (counts - counts[0]) / (counts[-1] - counts[0]) * inner_width

    def y(values: Values) -> Values:
        return np.asarray(TOP + (high - np.clip(values, low - 0.05 * span, high)) / span * inner_height)

    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{name}</text>']
    for value in (low, (low + high) / 2, high):
        height = float(y(np.array([value]))[0])
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + inner_width}" y1="{height:.1f}" y2="{height:.1f}" stroke="#e2e8f0"/>'
        )
        parts.append(f'<text x="{LEFT - 5}" y="{height + 4:.1f}" text-anchor="end" fill="#64748b">{value:.0f}</text>')
    for count, x in zip(results.counts, xs, strict=True):
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="#64748b">{count}</text>')
    for strategy in ("uniform", "bico"):
        if strategy in curves:
            values = curves[strategy]
            error = values.std(0, ddof=1) / len(values) ** 0.5 * t.ppf(0.975, len(values) - 1) if len(values) > 1 else 0
            upper, lower = y(values.mean(0) + error), y(values.mean(0) - error)
            band = f"{_points(xs, upper)} {_points(xs[::-1], lower[::-1])}"
            parts.append(f'<polygon points="{band}" fill="{COLORS[strategy]}" opacity="0.15"/>')
    for strategy in sorted(curves, key=lambda s: list(COLORS).index(s) if s in COLORS else -1, reverse=False):
        color = COLORS.get(strategy, OTHER)
        width = 2.2 if strategy in ("bico", "uniform") else 1.3
        line = _points(xs, y(curves[strategy].mean(0)))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{width}"/>')
    return "".join(parts)


def write_curves(results: Results, path: Path) -> None:
    """All panels with a legend below."""
    n_rows = -(-len(results.sets) // COLUMNS)
    height = n_rows * HEIGHT + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{COLUMNS * WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, name in enumerate(results.sets):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({x},{y})">{panel(results, name)}</g>')
    x = LEFT
    for name, color in {**{s: c for s, c in COLORS.items() if s in results.strategies}, "others": OTHER}.items():
        parts.append(
            f'<line x1="{x}" x2="{x + 18}" y1="{height - 14}" y2="{height - 14}" stroke="{color}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{x + 23}" y="{height - 10}">{name}</text>')
        x += 40 + 7 * len(name)
    parts.append("</svg>")
    path.write_text("\n".join(parts) + "\n")
