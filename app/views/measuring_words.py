"""Sentences about a measurement, shared by the page, the command line and the API."""

from __future__ import annotations

from app.views.forecasts import FEWEST_ITEMS, FEWEST_ROUNDS, Forecast
from app.views.measuring import Measurement, Share
from app.views.text import count
from storage.labeling.test_sets import Draw


def percent(share: Share) -> str:
    """Format a share: "87.3 %, 95 % interval 81.2 to 91.6 %, 150 items"."""
    low, high = share.interval
    return f"{100 * share.value:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %, {count(share.n, 'item')}"


def progress_sentence(found: Measurement) -> str:
    """A sentence on how many test items are labeled."""
    if found.n_waiting:
        return f"{found.n_labeled:,} of {count(found.n_drawn, 'test item')} are labeled. The others are in the queue."
    skipped = f" {found.n_skipped:,} were skipped and do not count." if found.n_skipped else ""
    return f"All {count(found.n_labeled, 'test item')} are labeled.{skipped}"


def draw_sentence(draw: Draw) -> str:
    """A sentence on the items that were drawn and the treatment of groups."""
    sentence = f"Drew {count(draw.n_items, 'test item')} from {draw.n_frame:,} (seed {draw.seed})."
    if draw.n_test_groups:
        return sentence + (
            f" They come from {draw.n_test_groups:,} of {draw.n_groups:,} groups without a label. The other "
            f"{count(draw.n_set_aside, 'item')} of these groups were removed from the pool."
        )
    if draw.n_groups:
        return sentence + f" Each of {draw.n_groups:,} groups contributes its share, so groups are on both sides."
    return sentence


def about_rounds(found: Measurement) -> list[str]:
    """Sentences on how the rounds were measured and how to read the curve."""
    lines = ["Every round is measured on the same test items, by the network alone. No round trained on them."]
    if found.n_groups:
        lines.append(
            f"The test items come from {count(found.n_groups, 'whole group')} that no round trains on. The interval "
            "accounts for this, so it is wider than with the same number of independent items."
        )
    if found.divided:
        lines.append("Rounds train on other items of the same groups, so the accuracy on new groups may be lower.")
    early = sum(not row.inductive for row in found.rounds)
    if early:
        rounds = count(early, "round")
        lines.append(f"{rounds} from before the draw used these items without labels; the accuracy may be too high.")
    if found.n_left_out:
        rounds = count(found.n_left_out, "round")
        lines.append(f"{rounds} has no predictions of all test items and is not shown." if found.n_left_out == 1 else
                     f"{rounds} have no predictions of all test items and are not shown.")  # fmt: skip
    return lines


def forecast_sentence(found: Forecast | None, n_test: int) -> str:
    """A sentence with the estimate and its uncertainty, or on what is missing for an estimate."""
    if found is None:
        return (
            f"An estimate needs {FEWEST_ROUNDS} rounds with different numbers of labels after the draw and "
            f"{FEWEST_ITEMS} labeled test items (now {n_test:,})."
        )
    target = f"{100 * found.target:.0f} %"
    if found.reached:
        return f"The last round reached {target} on the test items."
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
    """A sentence on whether to label more, based only on the test items. Empty if there is too little data."""
    if found.newest is None or forecast is None:
        return ""
    low, high = found.newest.accuracy.interval
    if forecast.reached and low >= forecast.target:
        return "You can stop: even the lower end of the interval is above the target."
    if forecast.reached:
        return (
            f"The target is reached, but the interval starts at {100 * low:.1f} %. Draw more test items to be sure, or "
            "keep labeling."
        )
    if high < forecast.target and (forecast.low is None or forecast.high is None):
        return "More labels alone will probably not be enough. Check the confusions and the classes first."
    return ""
