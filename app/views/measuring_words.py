"""Sentences about a measurement, the same on the page, on the command line and in the API."""

from __future__ import annotations

from app.views.forecasts import FEWEST_ITEMS, FEWEST_ROUNDS, Forecast
from app.views.measuring import Measurement, Share
from app.views.text import count
from storage.labeling.test_sets import Draw


def percent(share: Share) -> str:
    """ "87.3 %, 95 % interval 81.2 to 91.6 %, 150 items"."""
    low, high = share.interval
    return f"{100 * share.value:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %, {count(share.n, 'item')}"


def progress_sentence(found: Measurement) -> str:
    """How far the test items are labeled."""
    if found.n_waiting:
        return f"{found.n_labeled:,} of {count(found.n_drawn, 'test item')} are labeled. The others are in the queue."
    skipped = f" {found.n_skipped:,} were skipped and do not count." if found.n_skipped else ""
    return f"All {count(found.n_labeled, 'test item')} are labeled.{skipped}"


def draw_sentence(draw: Draw) -> str:
    """What was drawn, and how groups were treated."""
    sentence = f"Drew {count(draw.n_items, 'test item')} from {draw.n_frame:,} (seed {draw.seed})."
    if draw.n_test_groups:
        return sentence + (
            f" They come from {draw.n_test_groups:,} of {draw.n_groups:,} groups without a label; the other "
            f"{count(draw.n_set_aside, 'item')} of these groups left the pool."
        )
    if draw.n_groups:
        return sentence + f" Each of {draw.n_groups:,} groups has its share, so groups are on both sides."
    return sentence


def about_rounds(found: Measurement) -> list[str]:
    """What the curve does not show by itself."""
    lines = ["Every round is measured on the same test items, by the network alone. No round trained on them."]
    if found.n_groups:
        lines.append(
            f"The test items come from {count(found.n_groups, 'whole group')} that no round trains on. The interval "
            "counts groups, so it is wider than that of as many independent items."
        )
    if found.divided:
        lines.append("Items of the same groups are trained on, so the accuracy on new groups may be lower.")
    early = sum(not row.inductive for row in found.rounds)
    if early:
        rounds = count(early, "round")
        lines.append(f"{rounds} from before the draw used these items without labels; such accuracy may be too high.")
    if found.n_left_out:
        rounds = count(found.n_left_out, "round")
        lines.append(f"{rounds} has no predictions of all test items and is not shown." if found.n_left_out == 1 else
                     f"{rounds} have no predictions of all test items and are not shown.")  # fmt: skip
    return lines


def forecast_sentence(found: Forecast | None, n_test: int) -> str:
    """An estimate with its uncertainty, or what is missing for one."""
    if found is None:
        return (
            f"An estimate needs {FEWEST_ROUNDS} rounds with different numbers of labels after the draw and "
            f"{FEWEST_ITEMS} labeled test items (now {n_test:,})."
        )
    target = f"{100 * found.target:.0f} %"
    if found.reached:
        return f"The last round has reached {target} on the test items."
    if found.low is None or found.more is None:
        return f"The curve does not reach {target}: with this model and these classes, more labels may not be enough."
    if found.high is None:
        return (
            f"{target} takes at least about {count(found.low, 'more label')}. There is no upper bound: the curve may "
            "flatten first."
        )
    return (
        f"{target} takes about {count(found.more, 'more label')} (80 % interval {found.low:,} to {found.high:,}), if "
        "the curve continues as a power law."
    )


def stop_advice(found: Measurement, forecast: Forecast | None) -> str:
    """Whether to label more, from the test items alone; empty where they say nothing yet."""
    if found.newest is None or forecast is None:
        return ""
    low, high = found.newest.accuracy.interval
    if forecast.reached and low >= forecast.target:
        return "You can stop: even the lower end of the interval is above the target."
    if forecast.reached:
        return (
            f"The target is reached, but the interval begins at {100 * low:.1f} %. Draw more test items to be sure, or "
            "keep labeling."
        )
    if high < forecast.target and (forecast.low is None or forecast.high is None):
        return "More labels of the same kind will probably not be enough. Check the confusions and the classes first."
    return ""
