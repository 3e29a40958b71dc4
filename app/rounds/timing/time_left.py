"""The time left of a running round, computed from its progress rows.

    step      the current part of the round: the first one without a row that marks it as finished
    phase     rows of the step that count the same units: same name, same total, and a count that does not decrease
    rate      units per second: the median slope over pairs of the newest rows (Theil-Sen estimator), which is robust
              against a slow start, a pause or a burst
    stage     time left of the step: units left / rate, plus the expected seconds of later phases, which the last
              comparable round recorded
    speed     ratio of measured to expected seconds: the geometric mean over the finished steps and the current one. The
              weight of a step is the shorter of its two times, so that a step that was expected to be short has little
              influence. With a comparable round, the seconds per unit of the newest RECENT_SECONDS are compared
              instead, because a machine that has become slower usually stays slow
    round     time left of the round: that of the step, plus the expected seconds of later steps times the speed.
              Without a comparable round, it is not estimated until KNOWN_SHARE of the work is done, and not in the
              first KNOWN_SECONDS of a step that is more than a third of the time left

Before a phase has run for MIN_SECONDS, its expected seconds are used if a finished round measured them. Without such a
round, later phases of a step take their share of the work (`Expected.shares`). Only the numbers of the rows are used,
not their texts, so every page process shows the same result.

For a step that takes less than STATED_SECONDS in total, a number would not be useful and there are too few rows for an
estimate: its time left is only marked as short (`is_short`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from core.rounds.stage_names import NAMES
from storage.rounds.log import FINISHED, START, ProgressRow

STATED_SECONDS = 30.0  # no number is shown for shorter steps, nor for a shorter time left of a round
MIN_SECONDS = 5.0  # time that a phase must have run before its rate is used
MIN_ROWS, MIN_UNITS = 3, 3
FEW_UNITS = 20  # with fewer units, the mean rate is used
BLENDED, BLENDED_SECONDS = 0.2, 15.0  # share of units and seconds of a phase after which only its rate is used
LEAST_BLENDED = 12.0  # the shortest such time in seconds
MIN_GAP = 0.3  # shortest time between the rows of a pair, in seconds
MOST_ROWS = 40  # rows from which a rate is computed: 780 pairs
SHORTEST_SECONDS = 20.0  # a rate is computed from rows of this time or of half of the phase, whichever is longer
SMOOTHED_ROWS, SMOOTHED_SECONDS = 8, 8.0  # the newest rows, whose estimates of the end are averaged
AS_EXPECTED_SECONDS = 6.0  # weight of a prior speed of 1, in seconds
KNOWN_SHARE, KNOWN_SECONDS = 0.03, 15.0  # share of a round's expected seconds, and seconds of a long step
RECENT_SECONDS = 120.0  # the newest part of a round, whose speed is compared with a recorded round
MOST_FACTOR = 30.0  # limit of the speed, in both directions
OVERRUN = 0.1  # share of the elapsed time that is assumed to be left if a step takes longer than expected
WAITING = 0.5  # share of an estimate without units that is kept while no row arrives
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
        """Seconds from the last row to the end of the phase, as the mean of the estimates from the newest rows. None
        while there is no rate."""
        ends = [
            self.rows[k - 1][0] + (self.total - self.rows[k - 1][1]) / rate
            for k in range(len(self.rows), max(len(self.rows) - SMOOTHED_ROWS, 0), -1)
            if self.rows[-1][0] - self.rows[k - 1][0] < SMOOTHED_SECONDS and (rate := _rate(self.rows[:k])) is not None
        ]
        return max(sum(ends) / len(ends) - self.rows[-1][0], 0.0) if ends else None


def _rate(rows: Sequence[tuple[float, int]]) -> float | None:
    """Units per second. None before MIN_SECONDS, MIN_ROWS and MIN_UNITS are reached."""
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
    if found <= 0.0:  # few units, or most pairs have equal counts because units take longer than the time between rows
        found = counted / seconds
    return found if found > 0.0 else None


def _after_first_unit(rows: Sequence[tuple[float, int]]) -> float | None:
    """The mean rate without the first unit, which includes one-time work. None before there are enough units."""
    began = next((row for row in rows if row[1] > rows[0][1]), rows[-1])
    seconds, counted = rows[-1][0] - began[0], rows[-1][1] - began[1]
    return counted / seconds if counted >= MIN_UNITS - 1 and seconds > MIN_GAP else None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a round, computed from its rows."""

    name: str
    seconds: float  # from the start of the step to its end or to the last row
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected times of a round: the seconds of each step, the phases that an earlier round recorded, and the
    shares of the phases in the work of a step, in order."""

    seconds: Mapping[str, float]
    is_measured: bool = False
    phases: Mapping[str, Sequence[Phase]] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """The time left of a round, with the counter of the current phase."""

    step: str  # empty before a worker has started the round
    done: int = 0  # finished units of the current phase
    total: int = 0
    stage_seconds: float | None = None  # None before there is an estimate
    round_seconds: float | None = None  # the expected total before a worker has started; None while speed is unknown
    is_short: bool = False  # the step takes less than STATED_SECONDS in total
    counted: str = ""  # the name of the current phase


def time_left(rows: Sequence[ProgressRow], expected: Expected, at: datetime) -> TimeLeft:
    """The time left at the time `at`, computed from the rows until then, oldest first."""
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
    """Whether enough of a round has been measured to estimate its total time without a comparable round."""
    if is_long and step.seconds < KNOWN_SECONDS:
        return False
    return sum(seconds for seconds, _ in ratios) >= KNOWN_SHARE * sum(expected.seconds.values())


def _passed(step: Step, known: float, waited: float) -> float:
    """The seconds of `waited` to subtract from an estimate: at most the seconds of one unit, or half of an estimate
    without units."""
    if not step.phases:
        return min(waited, WAITING * known)
    last = step.phases[-1]
    return min(waited, max(known / max(last.total - last.rows[-1][1], 1), ROW_SECONDS), known)


def steps_of(rows: Sequence[ProgressRow]) -> list[Step]:
    """The steps of a round in order. If the round is not finished, the last one is the current step."""
    steps: list[Step] = []
    own: list[ProgressRow] = []
    at, began = 0, rows[0].at if rows else None
    for row in rows:
        assert began is not None
        if row.stage == START:  # a worker has started the round, or another one has taken it over
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
        if row.total <= 1:  # marks the start or the end of a step; does not count units
            continue
        at = ((row.at - began).total_seconds(), row.done)
        if phases and phases[-1][:2] == (row.stage, row.total) and row.done >= phases[-1][2][-1][1]:
            phases[-1][2].append(at)
        else:
            phases.append((row.stage, row.total, [at]))
    seconds = (rows[-1].at - began).total_seconds() if rows else 0.0
    return Step(name, seconds, tuple(Phase(counted, total, tuple(own)) for counted, total, own in phases))


def _ratios(steps: Sequence[Step], expected: Expected) -> list[tuple[float, float]]:
    """(weight, ratio) pairs of measured to expected seconds. The last step is the current one."""
    return _recent(steps, expected) if expected.is_measured else _by_rule(steps, expected)


def _speed(ratios: Sequence[tuple[float, float]]) -> float:
    """The ratio of measured to expected seconds of the round, from (weight, ratio) pairs."""
    weight = sum(seconds for seconds, _ in ratios) + AS_EXPECTED_SECONDS
    speed = math.exp(sum(seconds * math.log(ratio) for seconds, ratio in ratios) / weight)
    return min(max(speed, 1 / MOST_FACTOR), MOST_FACTOR)


def _by_rule(steps: Sequence[Step], expected: Expected) -> list[tuple[float, float]]:
    """(weight, ratio) for each finished step and for the elapsed part of the current one."""
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
    """(weight, ratio) for the phases of the newest RECENT_SECONDS that the recorded round has as well, and for the
    finished steps without phases."""
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
    """The mean seconds per unit. None before MIN_UNITS."""
    counted = rows[-1][1] - rows[0][1]
    return (rows[-1][0] - rows[0][0]) / counted if counted >= MIN_UNITS else None


def _numbered(phases: Sequence[Phase]) -> list[tuple[int, Phase]]:
    """Each phase with the number of earlier phases of the same name, because a step may use a name more than once."""
    names = [phase.name for phase in phases]
    return [(names[:k].count(phase.name), phase) for k, phase in enumerate(phases)]


def _left_in_step(step: Step, expected: Expected, speed: float) -> float | None:
    """Seconds from the last row of the step to its end. None if nothing has been measured yet."""
    usual = speed * expected.seconds.get(step.name, 0.0) - step.seconds
    now = step.phases[-1] if step.phases else None
    if now is None:
        return max(usual, OVERRUN * step.seconds) if expected.is_measured else None
    left = now.left()
    past = expected.phases.get(step.name, ())
    repeats = sum(phase.name == now.name for phase in step.phases) - 1  # a step may use a name more than once
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
    return left if now.name == step.name else max(left, usual)  # otherwise a preparation before the main part


def _blended(phase: Phase, left: float | None, usual: float) -> float:
    """The seconds left of a phase: at its start the expected ones, after a fifth of it those from its rate, and their
    weighted geometric mean in between."""
    by_past = max(usual - phase.seconds, OVERRUN * phase.seconds)
    if left is None:
        return by_past
    counted = phase.rows[-1][1] / (BLENDED * phase.total)
    passed = (phase.seconds - MIN_SECONDS) / min(max(BLENDED * usual, LEAST_BLENDED), BLENDED_SECONDS)
    weight = min(counted, 1.0) * min(passed, 1.0)
    return float(left**weight * by_past ** (1 - weight)) if by_past > 0 else left
