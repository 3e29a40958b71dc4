"""Simulated annotators: the same start for all, answers that depend on the item alone, trials that resume."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter

import numpy as np
import pytest

from core.acquisition import reasons
from core.config import LabelsConfig
from core.errors import InvalidInput
from core.rounds import checking, round_model
from core.rounds.checking import earlier_predictions
from core.rounds.simulation import Oracle, Trial, answers, initial_rows, snapshot_with, thinned
from core.rounds.simulation_plan import LabeledPool, Plan, RoundRecord
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED
from tests.app.worker_processes import quick_config
from tests.core.media.samples import tone, wav
from tests.core.rounds.small_rounds import similar_clips
from tests.round_pools import picture


def labeled_pool(n: int = 60, n_test: int = 15) -> tuple[LabeledPool, dict[str, bytes]]:
    data = [picture(row % 3, row) for row in range(n)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    pool = LabeledPool(
        kind="image",
        class_names=("bars", "blobs", "checks"),
        hashes=hashes,
        truth=np.arange(n) % 3,
        test=np.arange(n) < n_test,
    )
    return pool, dict(zip(hashes, data, strict=True))


def trial(strategy: str = "uniform", plan: Plan | None = None, seed: int = 3, **more) -> Trial:
    pool, media = labeled_pool()
    config = quick_config(strategy=strategy)
    return Trial(
        pool=pool,
        plan=plan or Plan(start=4, batch=3, rounds=2),
        config=dataclasses.replace(config, seed=seed),
        seed=seed,
        read=media.__getitem__,
        cache=MemoryRowCache(),
        runtime=Runtime.create(seed, "cpu"),
        **more,
    )


class CountingCache(MemoryRowCache):
    """Counts how often each row was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: Counter[tuple[str, str]] = Counter()

    def rows(self, key, names, compute, report=None):
        def count(positions):
            self.computed.update((key, names[position]) for position in positions)
            return compute(positions)

        return super().rows(key, names, count, report)


context = Trial._context


def without_times(records: list[RoundRecord]) -> list[RoundRecord]:
    return [dataclasses.replace(one, seconds={}) for one in records]


def test_the_initial_labels_cover_every_class_and_leave_the_test_items_alone():
    pool, _ = labeled_pool()
    for seed in range(20):
        rows = initial_rows(pool, Plan(start=5), seed)
        assert len(set(rows.tolist())) == 5
        assert set(pool.truth[rows]) == {0, 1, 2}
        assert not pool.test[rows].any()


def test_a_class_can_be_missing_from_the_initial_labels():
    pool, _ = labeled_pool()
    assert set(pool.truth[initial_rows(pool, Plan(start=20, missing_class="blobs"), 0)]) == {0, 2}


def test_wrong_answers_occur_at_the_requested_share_and_are_never_right():
    truth = np.zeros(4000, np.int64)
    hashes = tuple(hashlib.sha256(str(k).encode()).hexdigest() for k in range(4000))
    pool = LabeledPool(kind="image", class_names=("a", "b", "c"), hashes=hashes, truth=truth, test=np.arange(4000) == 0)
    given = answers(pool, Plan(wrong_share=0.1), 0)
    assert (given != truth).mean() == pytest.approx(0.1, abs=0.02)
    assert set(given) == {0, 1, 2}
    assert np.array_equal(answers(pool, Plan(), 0), truth)


def test_an_answer_does_not_depend_on_what_else_is_in_the_pool():
    pool, _ = labeled_pool()
    plan = Plan(wrong_share=0.3, rare_class="checks", rare_share=0.1)
    few = thinned(pool, plan, 0)
    whole = dict(zip(pool.hashes, answers(pool, plan, 0), strict=True))
    assert all(whole[name] == given for name, given in zip(few.hashes, answers(few, plan, 0), strict=True))


def test_a_rare_class_is_thinned_in_the_pool_and_whole_in_the_test():
    pool, _ = labeled_pool(600, 60)
    few = thinned(pool, Plan(rare_class="blobs", rare_share=0.02), 0)
    left = few.truth[~few.test]
    assert (left == 1).mean() == pytest.approx(0.02, abs=0.005)
    assert np.array_equal(few.truth[few.test], pool.truth[pool.test])


def test_a_trial_uses_each_label_once_and_ends_without_picks():
    records = list(trial("bico").run())
    assert [one.n_labels for one in records] == [4, 7, 10]
    chosen = [name for one in records for name in one.picks]
    assert len(chosen) == len(set(chosen)) == 6
    assert records[-1].picks == ()
    assert all(0 <= one.accuracy <= 1 for one in records)


def test_picks_have_no_reasons_and_are_those_of_a_round_that_explains_them(monkeypatch):
    explained: list[int] = []
    attach = reasons.attach

    def counted(*given):
        explained.append(1)
        return attach(*given)

    monkeypatch.setattr(reasons, "attach", counted)
    quick = without_times(list(trial("badge").run()))
    assert not explained
    monkeypatch.setattr(Trial, "_context", lambda *given: dataclasses.replace(context(*given), explain=True))
    assert without_times(list(trial("badge").run())) == quick
    assert len(explained) == 2


def test_strategies_of_one_seed_start_from_the_same_model():
    first = next(iter(trial("uniform").run()))
    other = next(iter(trial("margin").run()))
    assert first.accuracy == other.accuracy
    assert first.picks != other.picks


@pytest.mark.slow
def test_what_trials_share_is_computed_once(tmp_path, monkeypatch):
    """Three strategies of a seed train on the initial labels once; no row of the cache is computed twice, no file is
    read twice, and sharing changes no result."""
    trained, read, cache = [], Counter(), CountingCache()
    train = round_model.train

    def watch(inputs, labels, *rest, **more):
        trained.append(labels)
        return train(inputs, labels, *rest, **more)

    monkeypatch.setattr(round_model, "train", watch)
    plan, strategies = Plan(start=4, batch=3, rounds=1), ("uniform", "margin", "bico")
    pool, media = labeled_pool()

    def reader(name: str) -> bytes:
        read[name] += 1
        return media[name]

    def shared(strategy: str) -> Trial:
        made = trial(strategy, plan, start_file=tmp_path / "start.safetensors")
        return dataclasses.replace(made, cache=cache, read=reader)

    shared("bico").train_start()
    shared("bico").fit_pool()
    found = [record for strategy in strategies for record in shared(strategy).run()]
    assert [int((labels >= 0).sum()) for labels in trained] == [4, 7, 7, 7]
    assert set(cache.computed.values()) == {1}
    assert set(read.values()) == {1} and len(read) == len(pool.hashes)
    assert {one.seconds["train"] for one in found if one.round == 0} == {found[0].seconds["train"]}
    alone = [record for strategy in strategies for record in trial(strategy, plan).run()]
    assert without_times(found) == without_times(alone)


def test_rounds_start_from_the_last_model_like_those_of_a_worker(monkeypatch):
    """The stages are those that a worker also runs; each training starts from the model of the previous round."""
    given, made = [], []
    train = round_model.train

    def watch(*args, warm_start, **more):
        given.append(warm_start)
        made.append(train(*args, warm_start=warm_start, **more))
        return made[-1]

    monkeypatch.setattr(round_model, "train", watch)
    list(trial("uniform").run())
    assert given == [None, *made[:-1]] and len(made) == 3
    assert [model.history[-1]["step"] for model in made] == [8, 4, 4]
    given.clear()
    list(trial("uniform", Plan(start=4, batch=3, rounds=1, warm=False)).run())
    assert given == [None, None]


def test_an_interrupted_trial_resumes_to_the_same_result(tmp_path):
    whole = list(trial("margin", folder=tmp_path / "whole").run())
    cut = trial("margin", folder=tmp_path / "cut")
    begun = []
    for record in cut.run():
        begun.append(record)
        if len(begun) == 2:
            break
    rest = list(trial("margin", folder=tmp_path / "cut").run(begun))
    assert without_times([*begun, *rest]) == without_times(whole)


def test_a_trial_whose_model_is_lost_starts_again(tmp_path):
    made = trial("margin", folder=tmp_path / "gone")
    first = next(iter(made.run()))
    (tmp_path / "gone" / "0.safetensors").unlink()
    again = list(made.run([first]))
    assert [one.round for one in again] == [0, 1, 2]


def clip_trial(folder, plan: Plan | None = None) -> Trial:
    """Tones of three pitches, with enough first labels for a check."""
    data = [wav(tone(300 * (1 + 2 * (row % 3)) + row, seconds=0.2)) for row in range(45)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    pool, _ = labeled_pool(45, 6)
    media = dict(zip(hashes, data, strict=True))
    clips = dataclasses.replace(pool, kind="audio", hashes=hashes)
    usual = plan or Plan(start=20, batch=3, rounds=2, wrong_share=0.2)
    config = dataclasses.replace(similar_clips(), labels=LabelsConfig(second_looks=False))
    return dataclasses.replace(trial("margin", usual), pool=clips, config=config, read=media.__getitem__, folder=folder)


def test_a_trial_of_clips_checks_labels_by_its_earlier_rounds_and_resumes_to_the_same_result(tmp_path, monkeypatch):
    read: list[list[int]] = []

    def spy(context, labels):
        read.append([int((one.labels != UNLABELED).sum()) for one in context.previous.load_predictions()])
        return earlier_predictions(context, labels)

    monkeypatch.setattr(checking, "earlier_predictions", spy)
    whole = list(clip_trial(tmp_path / "whole").run())
    assert read == [[], [20], [23, 20]]
    read.clear()
    rest = list(clip_trial(tmp_path / "whole").run(whole[:2]))
    assert without_times(rest) == without_times(whole[2:]) and read == [[23, 20]]
    (tmp_path / "whole" / "0.predictions.npz").unlink()
    assert [one.round for one in clip_trial(tmp_path / "whole").run(whole[:2])] == [0, 1, 2]


@pytest.mark.slow
def test_a_record_lost_on_the_way_to_the_disk_is_made_again(tmp_path):
    """Killed after a model was stored and before its record was: the round is repeated from the previous model."""
    whole = list(trial("margin", folder=tmp_path).run())
    again = list(trial("margin", folder=tmp_path).run(whole[:2]))
    assert without_times(again) == without_times(whole[2:])


def test_classes_are_named_and_an_unknown_name_is_refused():
    with pytest.raises(InvalidInput, match="No class 'dots'; there are bars, blobs, checks"):
        thinned(labeled_pool()[0], Plan(rare_class="dots"), 0)


def test_the_snapshot_never_shows_the_test_labels_to_training():
    pool, _ = labeled_pool()
    snapshot = snapshot_with(pool, pool.truth, np.array([20, 30]))
    assert np.flatnonzero(snapshot.labeled).tolist() == [20, 30]
    assert not snapshot.eligible[pool.test].any()


def test_data_without_a_test_split_is_refused():
    with pytest.raises(InvalidInput, match="split=test"):
        LabeledPool(
            kind="image", class_names=("a",), hashes=("x",), truth=np.zeros(1, np.int64), test=np.zeros(1, np.bool_)
        )


def test_a_second_look_is_an_independent_draw_and_equal_answers_confirm():
    hashes = tuple(f"{row:064x}" for row in range(4_000))
    test = np.arange(4_000) >= 3_900
    data = LabeledPool(kind="image", class_names=("a", "b", "c"), hashes=hashes, truth=np.arange(4_000) % 3, test=test)
    oracle = Oracle(data, Plan(wrong_share=0.25), 1)
    rows = np.arange(3_900)
    oracle.label(rows)
    first = oracle.labels[rows] != data.truth[rows]
    assert abs(first.mean() - 0.25) < 0.03 and not oracle.confirmed.any()
    before = oracle.labels.copy()
    oracle.label(rows)
    second = oracle.labels[rows] != data.truth[rows]
    assert abs(second.mean() - 0.25) < 0.03 and abs(second[first].mean() - 0.25) < 0.05, "wrong answers are drawn again"
    assert np.array_equal(oracle.confirmed[rows], oracle.labels[rows] == before[rows])
    snapshot = oracle.snapshot()
    assert snapshot.confirmed is not None and snapshot.confirmed.sum() == oracle.confirmed.sum()
    again = Oracle(data, Plan(wrong_share=0.25), 1)
    again.label(rows)
    assert np.array_equal(again.labels, before)
