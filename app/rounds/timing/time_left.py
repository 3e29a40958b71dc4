"""The time left of a running round, computed from its progress rows.

    step      the part of the round that runs now: the first one without a row that says it is finished
    phase     rows of the step that count the same units: one name, one total, and a count that does not fall
    rate      units per second: the median slope over pairs of rows (Theil and Sen) of the newest rows, so that a
              slow start, a pause or a burst does not move it
    stage     units left / rate, plus the expected seconds of later phases, which the last comparable round recorded
    speed     seconds that this round takes for one that was expected: the geometric mean of the ratios of measured to
              expected seconds, over the finished steps and the one that runs. A ratio weighs as much as the shorter of
              its two times, so that a step that was expected to be short moves it little. With a comparable round,
              seconds of a unit are compared instead, in the newest RECENT_SECONDS: a machine that became slower
              stays slow
    round     plus the expected seconds of later steps, times the speed. Without a comparable round, there is none until
              the speed is known from KNOWN_SHARE of the work, nor in the first KNOWN_SECONDS of a step that is a
              third of what is left

Until a phase has MIN_SECONDS, its expected seconds count, where a finished round measured them. Without such a round,
later phases of a step take their share of the work (`Expected.shares`). The text of a row is never read. Only rows
enter, so every page process shows the same.

A step that takes less than STATED_SECONDS in all is over before a number helps, and has too few rows for one: its time
left is said to be short (`is_short`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from core.rounds.stage_names import NAMES
from storage.rounds.log import FINISHED, START, ProgressRow

STATED_SECONDS = 30.0  # of a step in all, or left of a round: below, no number is stated
MIN_SECONDS = 5.0  # of a phase before its rate is used
MIN_ROWS, MIN_UNITS = 3, 3
FEW_UNITS = 20  # below, the mean rate is used
BLENDED, BLENDED_SECONDS = 0.2, 15.0  # of an expected phase, share of its units and time until its rate alone counts
LEAST_BLENDED = 12.0  # seconds, also of a short phase
MIN_GAP = 0.3  # seconds between the rows of a pair
MOST_ROWS = 40  # that enter a rate: 780 pairs
SHORTEST_SECONDS = 20.0  # of the rows that enter a rate; else half of the phase
SMOOTHED_ROWS, SMOOTHED_SECONDS = 8, 8.0  # newest rows whose estimates of the end are averaged
AS_EXPECTED_SECONDS = 6.0  # the weight of a speed of 1 beside what was measured
KNOWN_SHARE, KNOWN_SECONDS = 0.03, 15.0  # of the expected seconds of a round, and of a long step
RECENT_SECONDS = 120.0  # of a round whose speed is compared with a recorded one
MOST_FACTOR = 30.0  # limit of the speed, in both directions
OVERRUN = 0.1  # share of the elapsed time that is left when a step takes longer than expected
WAITING = 0.5  # share of an estimate without units that stays while no row arrives
ROW_SECONDS = 2.0  # the longest usual time between rows


@dataclass(frozen=True, slots=True)
class Phase:
    """A counter of one step, from its first row to its last."""

    name: str
    total: int
    rows: tuple[tuple[float, int], ...]  # (seconds since the step began, units done)

    @property
    def seconds(self) -> float:
        return self.rows[-1][0] - self.rows[0][0]

    def left(self) -> float | None:
        """Seconds from the last row to the end, by the mean of the ends that the newest rows give; None before there
        is a rate."""
        ends = [
            self.rows[k - 1][0] + (self.total - self.rows[k - 1][1]) / rate
            for k in range(len(self.rows), max(len(self.rows) - SMOOTHED_ROWS, 0), -1)
            if self.rows[-1][0] - self.rows[k - 1][0] < SMOOTHED_SECONDS and (rate := _rate(self.rows[:k])) is not None
        ]
        return max(sum(ends) / len(ends) - self.rows[-1][0], 0.0) if ends else None


def _rate(rows: Sequence[tuple[float, int]]) -> float | None:
    """Units per second; None before MIN_SECONDS, MIN_ROWS and MIN_UNITS."""
    seconds = rows[-1][0] - rows[0][0]
    counted = rows[-1][1] - rows[0][1]
    if seconds < MIN_SECONDS or len(rows) < MIN_ROWS or counted < MIN_UNITS:
        return None
    if rows[-1][1] - rows[0][1] < FEW_UNITS and (later := _after_first_unit(rows)):
        return later
    window = max(seconds / 2, SHORTEST_SECONDS)
    newer = [row for row in rows if row[0] >= rows[-1][0] - window]
    steps = len(newer) - 1
    some = [newer[k * steps // (MOST_ROWS - 1)] for k in range(MOST_ROWS)] if len(newer) > MOST_ROWS else newer
    slopes = [(d - b) / (c - a) for k, (a, b) in enumerate(some) for c, d in some[k + 1 :] if c - a > MIN_GAP]
    found = median(slopes) if slopes and counted >= FEW_UNITS else 0.0
    if found <= 0.0:  # few units, or most pairs count none: each takes longer than the time between rows
        found = counted / seconds
    return found if found > 0.0 else None


def _after_first_unit(rows: Sequence[tuple[float, int]]) -> float | None:
    """The mean rate without the first unit, which includes what is computed once; None before there are enough."""
    began = next((row for row in rows if row[1] > rows[0][1]), rows[-1])
    seconds, counted = rows[-1][0] - began[0], rows[-1][1] - began[1]
    return counted / seconds if counted >= MIN_UNITS - 1 and seconds > MIN_GAP else None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a round by its rows."""

    name: str
    seconds: float  # from its begin to its end, or to the last row
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a round is expected to take: seconds of each step, the phases that an earlier round recorded, and the shares
    of the phases in the work of a step, in their order."""

    seconds: Mapping[str, float]
    is_measured: bool = False
    phases: Mapping[str, Sequence[Phase]] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeLeft:
    step: str  # "" before a worker has begun
    done: int = 0  # of the current phase
    total: int = 0
    stage_seconds: float | None = None  # None before there is an estimate
    round_seconds: float | None = None  # of all steps before a worker has begun; None before the speed is known
    is_short: bool = False  # the step takes less than STATED_SECONDS in all
    counted: str = ""  # the name of the current phase


def time_left(rows: Sequence[ProgressRow], expected: Expected, at: datetime) -> TimeLeft:
    """The time left at the moment `at`, after the rows until then, oldest first."""
    steps = steps_of(rows)
    if not steps:
        return TimeLeft("", round_seconds=sum(expected.seconds.values()))
    current = steps[-1]
    ratios = _ratios(steps, expected)
    speed, before = _speed(ratios), _speed(_ratios([*steps[:-1], Step(current.name, 0.0, ())], expected))
    waited = max((at - rows[-1].at).total_seconds(), 0.0)
    known = _left_in_step(current, expected, before)
    stage = None if known is None else known - _passed(current, known, waited)
    usual = max(speed * expected.seconds.get(current.name, 0.0) - current.seconds - waited, 0.0)
    later = speed * sum(expected.seconds.get(name, 0.0) for name in NAMES[NAMES.index(current.name) + 1 :])
    total: float | None = (usual if stage is None else stage) + later
    if not expected.is_measured and not _is_known(current, 2 * usual > later, ratios, expected):
        total = None
    counted = current.phases[-1] if current.phases else Phase("", 0, ((0.0, 0),))
    short = stage is not None and current.seconds + waited + stage < STATED_SECONDS
    return TimeLeft(current.name, counted.rows[-1][1], counted.total, stage, total, short, counted.name)


def _is_known(step: Step, is_long: bool, ratios: Sequence[tuple[float, float]], expected: Expected) -> bool:
    """Whether enough of a round is measured to estimate all of it without a comparable round."""
    if is_long and step.seconds < KNOWN_SECONDS:
        return False
    return sum(seconds for seconds, _ in ratios) >= KNOWN_SHARE * sum(expected.seconds.values())


def _passed(step: Step, known: float, waited: float) -> float:
    """The seconds of `waited` that count: without a new row at most those of one unit, or half of an estimate."""
    if not step.phases:
        return min(waited, WAITING * known)
    last = step.phases[-1]
    return min(waited, max(known / max(last.total - last.rows[-1][1], 1), ROW_SECONDS), known)


def steps_of(rows: Sequence[ProgressRow]) -> list[Step]:
    """The steps of a round in their order; the last one is that which runs, if the round is not finished."""
    steps: list[Step] = []
    own: list[ProgressRow] = []
    at, began = 0, rows[0].at if rows else None
    for row in rows:
        assert began is not None
        if row.stage == START:  # a worker starts the round, or another one takes it over
            own, began = [], row.at
        elif row.note == FINISHED and row.stage in NAMES:
            steps.append(_step(row.stage, [*own, row], began))
            at, own, began = NAMES.index(row.stage) + 1, [], row.at
        else:
            if row.stage in NAMES and NAMES.index(row.stage) > at:
                at, own, began = NAMES.index(row.stage), [], own[-1].at if own else row.at
            own.append(row)
    if began is not None and at < len(NAMES):
        steps.append(_step(NAMES[at], own, began))
    return steps


def _step(name: str, rows: Sequence[ProgressRow], began: datetime) -> Step:
    phases: list[tuple[str, int, list[tuple[float, int]]]] = []
    for row in rows:
        if row.total <= 1:  # marks the begin or the end of a step; counts nothing
            continue
        at = ((row.at - began).total_seconds(), row.done)
        if phases and phases[-1][:2] == (row.stage, row.total) and row.done >= phases[-1][2][-1][1]:
            phases[-1][2].append(at)
        else:
            phases.append((row.stage, row.total, [at]))
    seconds = (rows[-1].at - began).total_seconds() if rows else 0.0
    return Step(name, seconds, tuple(Phase(counted, total, tuple(own)) for counted, total, own in phases))


def _ratios(steps: Sequence[Step], expected: Expected) -> list[tuple[float, float]]:
    """Measured over expected seconds with their weights; the last step is the one that runs."""
    return _recent(steps, expected) if expected.is_measured else _by_rule(steps, expected)


def _speed(ratios: Sequence[tuple[float, float]]) -> float:
    """Seconds that this round takes for one that was expected, from ratios with their weights."""
    weight = sum(seconds for seconds, _ in ratios) + AS_EXPECTED_SECONDS
    speed = math.exp(sum(seconds * math.log(ratio) for seconds, ratio in ratios) / weight)
    return min(max(speed, 1 / MOST_FACTOR), MOST_FACTOR)


def _by_rule(steps: Sequence[Step], expected: Expected) -> list[tuple[float, float]]:
    """(weight, ratio) of each finished step, and of the part of the current one that has passed."""
    *finished, current = steps
    found = [_compared(step.seconds, expected.seconds.get(step.name, 0.0)) for step in finished]
    left = _left_in_step(current, expected, 1.0) if current.phases else None
    if left is not None and current.seconds > 0:
        passed = current.seconds / (current.seconds + left)
        found.append(_compared(current.seconds, passed * expected.seconds.get(current.name, 0.0)))
    return found


def _compared(measured: float, usual: float) -> tuple[float, float]:
    weight = min(measured, usual)
    return (weight, measured / usual) if weight > 0 else (0.0, 1.0)


def _recent(steps: Sequence[Step], expected: Expected) -> list[tuple[float, float]]:
    """(weight, ratio) of the phases of the newest RECENT_SECONDS that the recorded round has too, and of the finished
    steps without phases."""
    found: list[tuple[float, float]] = []
    room = RECENT_SECONDS
    for place, step in enumerate(reversed(steps)):
        if not step.phases and place > 0:
            found.append(_compared(step.seconds, expected.seconds.get(step.name, 0.0)))
        past = {(phase.name, k): phase for k, phase in _numbered(expected.phases.get(step.name, ()))}
        for k, phase in reversed(_numbered(step.phases)):
            rows = [row for row in phase.rows if row[0] >= phase.rows[-1][0] - room]
            unit, seconds = _unit_seconds(rows), rows[-1][0] - rows[0][0]
            usual = _unit_seconds(past[phase.name, k].rows) if (phase.name, k) in past else None
            if unit and usual:
                found.append((seconds, unit / usual))
            room = max(room - seconds, 0.0)
    return found


def _unit_seconds(rows: Sequence[tuple[float, int]]) -> float | None:
    """Mean seconds of a unit; None before MIN_UNITS."""
    counted = rows[-1][1] - rows[0][1]
    return (rows[-1][0] - rows[0][0]) / counted if counted >= MIN_UNITS else None


def _numbered(phases: Sequence[Phase]) -> list[tuple[int, Phase]]:
    """Each phase with the number of those before it of the same name: a step may count under one name twice."""
    names = [phase.name for phase in phases]
    return [(names[:k].count(phase.name), phase) for k, phase in enumerate(phases)]


def _left_in_step(step: Step, expected: Expected, speed: float) -> float | None:
    """Seconds from the last row of the step to its end; None where nothing is measured yet."""
    usual = speed * expected.seconds.get(step.name, 0.0) - step.seconds
    now = step.phases[-1] if step.phases else None
    if now is None:
        return max(usual, OVERRUN * step.seconds) if expected.is_measured else None
    left = now.left()
    past = expected.phases.get(step.name, ())
    repeats = sum(phase.name == now.name for phase in step.phases) - 1  # a step may count under one name twice
    places = [k for k, phase in enumerate(past) if phase.name == now.name]
    if repeats < len(places):
        before = past[places[repeats]]
        later = speed * sum(phase.seconds for phase in past[places[repeats] + 1 :])
        return later + _blended(now, left, speed * before.seconds * now.total / before.total)
    if left is None:
        return max(usual, OVERRUN * step.seconds) if expected.is_measured else None
    shares = expected.shares.get(step.name, {})
    if shares.get(now.name):
        names = list(shares)
        later = sum(shares[name] for name in names[names.index(now.name) + 1 :]) / shares[now.name]
        return left + later * (now.seconds + left)
    return left if now.name == step.name else max(left, usual)  # else a preparation, with the main part to come


def _blended(phase: Phase, left: float | None, usual: float) -> float:
    """The expected seconds of a phase at its begin, those by its rate after a fifth of it, geometric means between."""
    by_past = max(usual - phase.seconds, OVERRUN * phase.seconds)
    if left is None:
        return by_past
    counted = phase.rows[-1][1] / (BLENDED * phase.total)
    passed = (phase.seconds - MIN_SECONDS) / min(max(BLENDED * usual, LEAST_BLENDED), BLENDED_SECONDS)
    weight = min(counted, 1.0) * min(passed, 1.0)
    return float(left**weight * by_past ** (1 - weight)) if by_past > 0 else left
