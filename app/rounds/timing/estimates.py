"""Estimates the time of a round, stage by stage, from the project's last rounds or by a rule.

The rule is for two CPU cores, and the screen says so; `benchmarks/scaling.py` measures its constants. It is used until
the project has a comparable finished round. Stages whose results are cached per item (inputs, features of an encoder or
a kernel) are estimated for new items only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.rounds.timing.time_left import Expected, Phase, steps_of
from core.config import RoundConfig
from core.rounds.stage_names import NAMES
from core.types import MediaKind
from storage.database.store import Store
from storage.labeling.item_rows import count_items
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow, get_project, list_projects
from storage.rounds.log import RoundLog, RoundRow

ENCODE_PER_ITEM: dict[MediaKind, float] = {"image": 0.02, "audio": 0.05}  # used until a round has encoded some items
HEAD_PER_ITEM = {"train": 1e-3, "predict": 1e-4, "select": 1e-3}  # seconds, for a head on the features of an encoder
PER_DESCRIBED = 4e-3  # seconds to describe a photograph by patches and to predict it with views
CACHED = ("encode", "prepare", "features")  # stages that compute each item once; later rounds compute only new items
LEAST_SHARE = 0.05  # share of a cached stage's seconds that remains without new items, for reading and sharing
PER_ITEM = {"snapshot": 2e-5, "prepare": 2e-3, "predict": 3e-4, "finish": 2e-5}  # seconds
PER_PAIR = 1.6e-6  # seconds to warp two clips of 32 frames for the similarity graph (3.1e-6 of CPU time, two threads)
PAIRS_OF_CLIP, GRAPH_CLIPS, GRAPH_FRAMES = 200, 30_000, 32  # limits of the graph in `core.similarity`
PER_POINT = 6e-4  # seconds per point of the map
PER_ENTRY = 5e-6  # seconds per entry of the kernel: an item or view and a landmark
PER_STEP = {"resnet-small": 0.04, "wrn-10-1": 0.1}  # FixMatch with 16 labeled and 48 unlabeled items of 1,024 values
KERNEL_COSTS = {  # cost of an entry relative to scnn, from `KERNEL_NETWORKS`
    "scnn": 1.0, "fnn": 0.05, "wrn": 8.0, "wrn-gap": 700.0, "cntk6": 3.0, "cntk6-gap": 3_500.0, "cntk6-gap-fast": 160.0,
    "myrtle5": 4_500.0,
    "rbf": 0.01, "linear": 0.01,
}  # fmt: skip
USUAL_ITEMS = 48 + 3 * (16 + 48)  # items that pass the network in such a step (see `_items_in_step`)
REFINE_STEP = 0.85  # cost relative to a training step: no pass without gradients, but a share of predicting the pool
FIXED_SHARE = 0.3  # share of a step's time that does not depend on the batch
USUAL_VALUES = 1_024  # values of an input: 1 s of audio, or 32 x 32 pixels
OTHER_STEP = 2.0
PER_PICK_AND_ENTRY = 1.5e-8  # seconds per pick and entry of candidates times landmarks
LANDMARK_WORK = 0.75  # share of all pairs of landmarks: half of a symmetric matrix in tiles, and its root
LEAST_ENCODED = 50  # items that a round must have encoded before its rate is used
GRAPH_START = 1.0  # seconds to load the compiled comparison, once per worker
MOST_RECORDS, MOST_ROWS = 64, 5_000  # finished rounds whose phases are kept in memory, and rows read for each
MAP_START = 4.0  # seconds to load and compile the optimizer of umap, once per worker

_phases: dict[tuple[str, int], dict[str, Sequence[Phase]]] = {}


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of a round, shown before it is started."""

    seconds: Mapping[str, float]  # stage -> seconds
    source: str  # "last round" | "rule"

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def estimate(store: Store, project_id: int, config: RoundConfig) -> Estimate:
    """Estimate a round with these settings in this project, if it started now."""
    n_items = count_items(store, project_id)
    past = _comparable(store, project_id, config)
    if not past:
        return by_rule(store, get_project(store, project_id), config)
    newest, first = past[0], past[-1]
    known = newest.metrics["seconds"]
    growth = n_items / _n_items(newest, n_items)
    scaled = {stage: float(known.get(stage, 0.0)) * growth for stage in NAMES}
    if config.preset != "encoder":
        scaled["train"] = float(known.get("train", 0.0)) * _steps(config, n_items) / max(_steps_of(newest, n_items), 1)
        rule = _by_rule(config, n_items, get_project(store, project_id).kind)
        scaled["refine"] = _refinement(newest, config, scaled["train"] * rule["refine"] / rule["train"])
    n_new = max(n_items - _n_items(newest, n_items), 0)
    for stage in CACHED:  # the first round computed all of its items
        all_seconds = float(first.metrics["seconds"].get(stage, 0.0))
        again = float(known.get(stage, 0.0)) if newest.id != first.id else LEAST_SHARE * all_seconds
        scaled[stage] = min(again, all_seconds) + n_new * all_seconds / _n_items(first, n_items)
    scaled["rival"] = growth * _second_model(store, project_id, newest)
    return Estimate(scaled, "last round")


def _refinement(past: RoundRow, config: RoundConfig, by_training: float) -> float:
    """Seconds of the stage "refine", from the seconds per step of the past round. `by_training` is returned if that
    round had no such steps."""
    before = past.config.training.refine_steps
    if not before or (config.media.patches and not past.config.media.patches):
        return by_training
    return float(past.metrics["seconds"].get("refine", 0.0)) * config.training.refine_steps / before


def _second_model(store: Store, project_id: int, past: RoundRow) -> float:
    """Seconds of the second model in a round of the preset `auto` (`core.rounds.approach.decision`). The head is
    trained in every round; training from scratch is repeated when the number of labels has doubled since the last
    time."""
    known = float(past.metrics["seconds"].get("rival", 0.0))
    if not past.metrics.get("approach"):
        return 0.0
    if not past.metrics["settings"]["encoder"]["identity"]:
        return known
    rounds = [row for row in RoundLog(store, project_id).list() if row.metrics.get("approach")]
    trained = next((row for row in rounds if row.metrics["seconds"].get("rival")), None)
    if trained is None or Pool(store, project_id).counts().labeled < 2 * int(trained.metrics["n_labeled"]):
        return 0.0
    return float(trained.metrics["seconds"]["rival"])


def by_rule(store: Store, project: ProjectRow, config: RoundConfig) -> Estimate:
    """Estimate a round by the rule only, so that any two settings can be compared. The rate of an encoder is measured
    if a round of any project has encoded items of this media type with it."""
    seconds = _by_rule(config, count_items(store, project.id), project.kind)
    if config.preset == "encoder" and (rate := _encoding_rate(store, project.kind, config)) is not None:
        seconds["encode"] = rate * count_items(store, project.id)
    return Estimate(seconds, "rule")


def expected(store: Store, project_id: int, config: RoundConfig) -> Expected:
    """The expected times for a running round: the estimate, and the phases of the round that it is based on."""
    found = estimate(store, project_id, config)
    past = _comparable(store, project_id, config) if found.source == "last round" else []
    shares = {"features": _feature_shares(config, count_items(store, project_id))}
    if not past:
        return Expected(found.seconds, shares=shares)
    return Expected(found.seconds, True, _recorded_phases(store, project_id, past[0].id), shares)


def _feature_shares(config: RoundConfig, n_items: int) -> dict[str, float]:
    """The work of the two phases in kernel entries: landmarks with landmarks, and items with landmarks."""
    n_landmarks = min(config.kernel.n_landmarks, n_items)
    return {
        "landmarks": LANDMARK_WORK * n_landmarks**2,
        "features": float(min(n_items, config.selection.max_candidates) * n_landmarks),
    }


def _encoding_rate(store: Store, kind: MediaKind, config: RoundConfig) -> float | None:
    """Seconds per item in the newest round, of any project, that encoded at least LEAST_ENCODED items with this
    encoder. None if there is no such round."""
    for project in list_projects(store):
        if project.kind != kind:
            continue
        for row in RoundLog(store, project.id).list():
            seconds = float(row.metrics.get("seconds", {}).get("encode", 0.0)) if row.status == "finished" else 0.0
            if seconds and row.config.preset == "encoder" and row.config.encoder.name == config.encoder.name:
                phases = _recorded_phases(store, project.id, row.id).get("encode", ())
                n_encoded = max((phase.total for phase in phases), default=0)
                if n_encoded >= LEAST_ENCODED:
                    return seconds / n_encoded
    return None


def _recorded_phases(store: Store, project_id: int, round_id: int) -> Mapping[str, Sequence[Phase]]:
    """The phases of a finished round, cached because they never change."""
    key = (store.url, round_id)
    if key not in _phases:
        if len(_phases) >= MOST_RECORDS:
            _phases.clear()
        rows = RoundLog(store, project_id).progress_of(round_id, MOST_ROWS)
        _phases[key] = {step.name: step.phases for step in steps_of(rows)}
    return _phases[key]


def _comparable(store: Store, project_id: int, config: RoundConfig) -> list[RoundRow]:
    """The project's finished rounds with the same network or encoder, method, kernel, strategy and input size, newest
    first."""
    project_kind = get_project(store, project_id).kind

    def kind(one: RoundConfig) -> tuple[object, ...]:
        training, kernel = one.training, one.kernel
        proxy = (kernel.network, kernel.n_landmarks, one.selection.strategy, one.selection.proxy)
        encoder = one.encoder.name if one.preset == "encoder" else None
        return training.network, training.method, *proxy, one.media.input_shape(project_kind), encoder

    rows = [row for row in RoundLog(store, project_id).list() if row.status == "finished"]
    return [row for row in rows if row.metrics.get("seconds") and kind(row.config) == kind(config)]


def _n_items(row: RoundRow, default: int) -> int:
    """The number of items in a round."""
    return max(int(row.metrics.get("n_items", default)), 1)


def _by_rule(config: RoundConfig, n_items: int, kind: MediaKind) -> dict[str, float]:
    has_graph = kind == "audio" and config.similarity.neighbors > 0
    candidates = min(n_items, config.selection.max_candidates)
    height, width, _ = config.media.input_shape(kind)
    size = height * width / USUAL_VALUES
    work = FIXED_SHARE + (1 - FIXED_SHARE) * size * _items_in_step(config) / USUAL_ITEMS
    per_step = PER_STEP.get(config.training.network, OTHER_STEP) * work
    per_entry = PER_ENTRY * size * KERNEL_COSTS.get(config.kernel.network, 1.0)
    n_landmarks = min(config.kernel.n_landmarks, n_items)
    picks, n_views = config.selection.batch_size, config.selection.n_views
    seconds = {stage: PER_ITEM.get(stage, 0.0) * n_items for stage in NAMES}
    seconds["map"] = MAP_START + min(n_items, config.map.max_points) * PER_POINT
    if config.preset == "encoder":
        head = {stage: per_item * n_items for stage, per_item in HEAD_PER_ITEM.items()}
        return seconds | head | {"encode": ENCODE_PER_ITEM[kind] * n_items, "prepare": 0.0}
    seconds["train"] = _steps(config, n_items) * per_step
    described = n_items * PER_DESCRIBED if kind == "image" and config.media.patches > 0 else 0.0
    if has_graph or described:
        seconds["refine"] = described + config.training.refine_steps * per_step * REFINE_STEP
    seconds["propagate"] = _graph_seconds(n_items, width) if has_graph else 0.0
    needs_no_kernel = ("similarity", "similarity-head") if has_graph else ("similarity-head",)
    if config.selection.proxy not in needs_no_kernel:  # else no stage reads kernel features
        seconds["features"] = candidates * n_landmarks * per_entry
    seconds["select"] = picks * n_landmarks * (candidates * PER_PICK_AND_ENTRY + 2 * n_views * per_entry)
    return seconds


def _graph_seconds(n_clips: int, n_frames: int) -> float:
    """Seconds of the similarity graph, which compares each clip with its candidates."""
    clips = min(n_clips, GRAPH_CLIPS)
    return (
        GRAPH_START + clips * min(clips, PAIRS_OF_CLIP) * PER_PAIR * (min(n_frames, GRAPH_FRAMES) / GRAPH_FRAMES) ** 2
    )


def _items_in_step(config: RoundConfig) -> int:
    """The number of items that pass the network in a training step. A pass with gradients counts as three."""
    training = config.training
    labeled, unlabeled = training.labeled_batch, training.unlabeled_batch
    if training.method == "supervised":
        return 3 * labeled
    if training.method == "mixmatch":
        guesses = training.n_augmentations * unlabeled
        return guesses + 3 * (labeled + guesses)
    return unlabeled + 3 * (labeled + unlabeled)


def _steps(config: RoundConfig, n_items: int) -> int:
    training = config.training
    return training.steps or training.epochs * max(n_items // training.unlabeled_batch, 1)


def _steps_of(row: RoundRow, n_items: int) -> int:
    return _steps(row.config, _n_items(row, n_items))
