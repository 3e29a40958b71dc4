"""The time left of a running round, computed from its progress rows.

    step      the part of the round that runs now: the first one without a row that says it is finished
    phase     rows of the step that count the same units: one name, one total, and a count that does not fall
    rate      units per second: the median slope over pairs of rows (Theil and Sen) of the newest rows, so that a
              slow start, a pause or a burst does not move it
    stage     units left / rate, plus the expected seconds of later phases, which the last comparable round recorded
    round     plus the expected seconds of later steps, times the speed: measured over expected seconds of the finished
              steps of this round, with ACCURATE_SECONDS added to both so that short steps say little

Until a phase has MIN_SECONDS, its expected seconds count, where a finished round measured them. Without such a round,
later phases of a step take their share of the work (`Expected.shares`). The text of a row is never read. Only rows
enter, so every page process shows the same.

A step that takes less than STATED_SECONDS in all is over before a number helps, and has too few rows for one: its time
left is said to be short (`is_short`).
"""

from __future__ import annotations

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
ACCURATE_SECONDS = 5.0
SLOWEST, FASTEST = 0.2, 5.0  # limits of the speed factor
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
    round_seconds: float | None = None
    is_short: bool = False  # the step takes less than STATED_SECONDS in all


def time_left(rows: Sequence[ProgressRow], expected: Expected, at: datetime) -> TimeLeft:
    """The time left at the moment `at`, after the rows until then, oldest first."""
    steps = steps_of(rows)
    if not steps:
        return TimeLeft("", round_seconds=sum(expected.seconds.values()))
    *finished, current = steps
    speed = _speed(finished, expected)
    waited = max((at - rows[-1].at).total_seconds(), 0.0)
    known = _left_in_step(current, expected, speed)
    stage = None if known is None else known - _passed(current, known, waited)
    usual = max(speed * expected.seconds.get(current.name, 0.0) - current.seconds - waited, 0.0)
    later = NAMES[NAMES.index(current.name) + 1 :]
    total = (usual if stage is None else stage) + speed * sum(expected.seconds.get(name, 0.0) for name in later)
    counted = current.phases[-1] if current.phases else Phase("", 0, ((0.0, 0),))
    short = stage is not None and current.seconds + waited + stage < STATED_SECONDS
    return TimeLeft(current.name, counted.rows[-1][1], counted.total, stage, total, short)


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


def _speed(finished: Sequence[Step], expected: Expected) -> float:
    """Seconds that this round takes for one that was expected."""
    measured = sum(step.seconds for step in finished) + ACCURATE_SECONDS
    usual = sum(expected.seconds.get(step.name, 0.0) for step in finished) + ACCURATE_SECONDS
    return min(max(measured / usual, SLOWEST), FASTEST)


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
