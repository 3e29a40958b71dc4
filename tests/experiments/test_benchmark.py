"""The benchmark: statistics by hand, one protocol for all strategies, and a page that is written from the files."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import scipy.stats

from experiments.benchmark import approaches, goals, page, scratch, scratch_tune, sets
from experiments.benchmark.protocol import Pool, first_labels, run_trial
from experiments.benchmark.sets import FeatureSet, long_tailed, sampled
from experiments.benchmark.statistics import Results
from experiments.benchmark.tune import tune_split

STRATEGIES = ("bico", "uniform", "margin")


def small_set(n: int = 90, n_classes: int = 3, seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    classes = np.arange(2 * n) % n_classes
    x = (2 * np.eye(n_classes, 12)[classes] + 0.6 * rng.normal(size=(2 * n, 12))).astype(np.float32)
    return FeatureSet("small", x[:n], classes[:n], x[n:], classes[n:])


def rows_of(values: dict[str, list[list[float]]], name: str = "a") -> list[dict[str, object]]:
    return [
        {"set": name, "strategy": strategy, "seed": seed, "accuracy": accuracies, "select_seconds": [0.1]}
        for strategy, seeds in values.items()
        for seed, accuracies in enumerate(seeds)
    ]


def test_ranks_and_areas_by_hand():
    rows = rows_of({"bico": [[0.5, 0.9]], "uniform": [[0.5, 0.7]], "margin": [[0.5, 0.8]]})
    results = Results(rows, STRATEGIES, (1, 3))
    np.testing.assert_allclose(results.ranks()[0], [[2.0, 1.0], [2.0, 3.0], [2.0, 2.0]])
    assert results.area("a", "bico") == pytest.approx(70.0)
    assert results.from_count(3) == [1]


def test_differences_are_paired_by_seed_and_their_interval_covers_the_mean():
    rng = np.random.default_rng(0)
    level = rng.random(10)
    gain = 0.02 + 0.005 * rng.normal(size=10)
    values = {"bico": [[0.0, a + g] for a, g in zip(level, gain, strict=True)], "uniform": [[0.0, a] for a in level]}
    results = Results(rows_of(values), ("bico", "uniform"), (1, 3))
    found = results.difference("bico", "uniform", [1])
    assert found.mean == pytest.approx(100 * gain.mean())
    assert 0 < found.low < found.mean < found.high  # unpaired, the spread of the levels would hide the gain
    assert results.verdict("a", "bico", "uniform", 1) == "win"
    assert results.verdict("a", "uniform", "bico", 1) == "loss"
    assert results.verdict("a", "bico", "uniform", 0) == "tie"


def test_only_seeds_that_every_strategy_has_count():
    rows = rows_of({"bico": [[0.5], [0.7]], "uniform": [[0.4]]})
    results = Results(rows, ("bico", "uniform"), (3,))
    assert results.seeds["a"] == [0] and results.values("a", "bico").shape == (1, 1)


def test_all_strategies_of_a_seed_start_from_the_same_labels():
    pool = Pool.of(small_set())
    trials = [run_trial(pool, strategy, 3, (3, 6, 9)) for strategy in STRATEGIES]
    assert len({trial["accuracy"][0] for trial in trials}) == 1
    for trial in trials:
        assert len(trial["accuracy"]) == 3 and len(trial["select_seconds"]) == 2
    again = run_trial(pool, "bico", 3, (3, 6, 9))
    assert again["accuracy"] == trials[0]["accuracy"]


def test_the_first_labels_have_every_class():
    classes = np.repeat([0, 1, 2], [80, 9, 1])
    rows = first_labels(classes, 5, seed=0)
    assert len(set(rows.tolist())) == 5 and set(classes[rows[:3]]) == {0, 1, 2}


def test_test_items_change_nothing_but_the_accuracy():
    data = small_set()
    other = FeatureSet(data.name, data.features, data.classes, data.test_features[::-1] * 3, data.test_classes)
    a, b = Pool.of(data), Pool.of(other)
    np.testing.assert_array_equal(a.prepared.z, b.prepared.z)
    np.testing.assert_array_equal(a.spread, b.spread)


def test_a_tune_split_divides_the_pool_and_holds_no_test_item():
    full = small_set()
    split = tune_split(full, seed=3)
    both = np.concatenate([split.features, split.test_features])
    assert len(split.test_classes) == len(full.classes) // 4
    np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(full.features, axis=0))
    assert not np.array_equal(split.test_features, tune_split(full, seed=4).test_features)


def test_long_tails_keep_the_test_items_and_every_class():
    data = long_tailed(small_set(n=300))
    sizes = np.sort(np.bincount(data.classes))
    assert sizes[-1] == 100 and sizes[0] == 10
    assert len(data.test_classes) == 300


def test_a_sample_keeps_class_shares_and_test_rows():
    rows = [{"path": str(k), "label": "ab"[k % 4 == 0], "split": "pool" if k < 80 else "test"} for k in range(100)]
    kept = sampled(rows, 40)
    pool = [row for row in kept if row["split"] == "pool"]
    assert len(pool) == 40 and sum(row["label"] == "b" for row in pool) == 10
    assert sum(row["split"] == "test" for row in kept) == 20


def test_the_page_is_made_from_trials_and_keeps_its_words(tmp_path):
    pool = Pool.of(small_set())
    curve = [
        {"set": "small", "strategy": strategy, "seed": seed, **run_trial(pool, strategy, seed, (3, 6, 9))}
        for strategy in STRATEGIES
        for seed in range(2)
    ]
    about = {"small": {"classes": 3, "pool": 90, "test": 90, "ceiling": pool.ceiling()}}
    kept = "<!-- goals: begin -->\nkept\n<!-- goals: end -->"
    (tmp_path / "benchmark.md").write_text(
        f"# Words\n\n<!-- tables: begin -->\nold\n<!-- tables: end -->\n\nAfter.\n{kept}\n"
    )
    found = page.write(
        page.Inputs(curve, about, STRATEGIES, (1, 2, 3), "small"), {"goals": "", "approaches": "new"}, tmp_path
    )
    text = (tmp_path / "benchmark.md").read_text()
    assert text.startswith("# Words") and f"After.\n{kept}\n" in text and "old" not in text
    assert text.endswith("<!-- approaches: begin -->\n\nnew\n\n<!-- approaches: end -->\n")
    assert "| bico |" in text and set(found["mean_rank"]) == set(STRATEGIES)
    assert (tmp_path / "benchmark_curves.svg").read_text().count("<polyline") == len(STRATEGIES)


def test_goals_are_compared_with_a_paired_interval_over_the_seeds_that_both_have():
    counts = goals.GOALS["speech_commands"].counts
    rng = np.random.default_rng(0)
    start, gain = 0.8 + 0.1 * rng.random(10), 0.03 + 0.005 * rng.normal(size=10)
    rows = []
    for seed in range(10):
        uniform = [start[seed]] + [start[seed] + 0.05] * 3
        bico = [start[seed]] + [start[seed] + 0.05 + gain[seed]] * 3
        rows.append({"set": "speech_commands", "strategy": "bico", "seed": seed, "accuracy": bico})
        if seed:  # the first seed of uniform is missing
            rows.append({"set": "speech_commands", "strategy": "uniform", "seed": seed, "accuracy": uniform})
    cells = goals.goal_rows(rows, {"speech_commands": {"ceiling": 0.975}})
    assert [row[:3] for row in cells] == [["speech_commands", str(count), str(asked)] for count, asked in
                                          goals.GOALS["speech_commands"].asked.items()]  # fmt: skip
    assert len(counts) == 4 and {row[-1] for row in cells} == {"9"} and {row[-2] for row in cells} == {"97.5"}
    pair = 100 * gain[1:]
    half = scipy.stats.t.interval(0.95, 8, 0, pair.std(ddof=1) / 3)[1]
    assert cells[0][6] == "the same"
    assert cells[2][6] == f"{pair.mean():+.1f} [{pair.mean() - half:+.1f}, {pair.mean() + half:+.1f}]"
    mean = 100 * (start + 0.05 + gain)[1:].mean()
    assert cells[2][4] == ("yes" if mean >= 96 else "no") and cells[2][3].startswith(f"{mean:.1f} ± ")


def test_approaches_count_the_seeds_that_reached_the_last_number_of_answers(tmp_path):
    comparison = approaches.COMPARISONS[0]
    records = [  # five of the answers of round 2 are second looks at labels
        {"seed": seed, "round": k, "n_labels": (10, 20, 25, 35)[k], "accuracy": 0.51 + 0.01 * k + 0.02 * seed}
        for seed in range(3)
        for k in range(4)
        if (seed, k) != (2, 3)
    ]
    folder = approaches.folder_of(tmp_path, comparison, "auto")
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"question": {"plan": {}}, "records": records}))
    [row] = approaches.approach_rows(tmp_path)
    assert row[:3] == ["mnist", "auto", "2"] and row[3].startswith("10: 52.0 ± ") and "40: 55.0 ± " in row[3]
    assert row[4] == "", "no similarity graph, no label propagation"


def test_trials_from_scratch_count_when_all_strategies_have_reached_the_last_number_of_labels(tmp_path):
    def record(strategy: str, seed: int, per_class: int, accuracy: float) -> dict[str, object]:
        seconds = {"train": 60.0, "select": 0.5 * per_class}
        n_labels = per_class * scratch.N_CLASSES - (5 if per_class > 2 else 0)  # without five second looks
        return {
            "strategy": strategy, "seed": seed, "round": per_class - 1, "n_labels": n_labels, "accuracy": accuracy,
            "seconds": seconds,
        }  # fmt: skip

    def trial(strategy: str, seed: int, last: float) -> list[dict[str, object]]:
        return [record(strategy, seed, count, last - 0.1 * (4 - count)) for count in scratch.PER_CLASS]

    assert scratch.scratch_section(tmp_path, "small") == ""
    records = [one for name in scratch.STRATEGIES for one in trial(name, 0, 0.9 if name == "bico" else 0.8)]
    begun = trial("bico", 1, 0.95)[:-1]
    rows = scratch.rows_of("mnist", [*records, *begun])
    assert {(row["strategy"], row["seed"]) for row in rows} == {(name, 0) for name in scratch.STRATEGIES}
    assert rows[1]["strategy"] == "bico"
    np.testing.assert_allclose(rows[1]["accuracy"], [0.6, 0.7, 0.8, 0.9])
    assert rows[1]["select_seconds"] == [0.5, 1.0, 1.5]
    file = scratch.Run(tmp_path, tmp_path, "small").folder("mnist") / "results.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"version": 2, "question": {"plan": {}}, "records": [*records, *begun]}))
    section = scratch.scratch_section(tmp_path, "small")
    assert "finished: mnist 1." in section and "Size `small`: 700 steps, 233 more" in section
    assert "| wall-clock time per selection |" in section and scratch.scratch_section(tmp_path, "full") == ""
    assert "| bico | 60.0 | 70.0 | 80.0 | 90.0 |" in section and "| uniform | 50.0 | 60.0 | 70.0 | 80.0 |" in section


def test_the_small_size_from_scratch_has_fewer_steps_and_a_sample_of_the_pool_with_all_test_items(tmp_path):
    folder = tmp_path / "data" / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for index in range(205):  # the first five of each digit are test clips
        for digit in range(10):
            (folder / f"{digit}_theo_{index}.wav").write_bytes(f"{digit} {index}".encode())
    found = {}
    for size in scratch.SIZES:
        run = scratch.Run(tmp_path / "data", tmp_path / "out", size)
        question = scratch.question("spoken_digit", run, seed=1)
        path = scratch.manifest_of("fsdd", run)
        assert question.data == str(path.resolve()) and question.seeds == (1,)
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        assert all((path.parent / row["path"]).read_bytes() for row in rows)
        found[size] = (rows, question.config.training)
    (small, quick), (full, usual) = found["small"], found["full"]
    for digit in {row["label"] for row in small}:
        assert sum(row["label"] == digit and row["split"] == "pool" for row in small) == 100
    assert [row for row in small if row["split"] == "test"] == [row for row in full if row["split"] == "test"]
    assert sum(row["split"] == "test" for row in small) == 50 and len(full) == 2_050
    assert (usual.steps, quick.steps) == (2_100, 700) and quick.refine_steps == round(usual.refine_steps / 3)
    assert quick.learning_rate == usual.learning_rate


def test_variants_from_scratch_are_tuned_on_the_pool_without_its_test_items(tmp_path):
    rows = [
        {"path": f"{split}/{label}{number}.wav", "label": label, "split": split}
        for label in "ab" for number in range(40) for split in ("pool", "test")
    ]  # fmt: skip
    small = tmp_path / "small" / "manifest.csv"
    for row in rows:
        (small.parent / row["path"]).parent.mkdir(parents=True, exist_ok=True)
        (small.parent / row["path"]).write_text(row["path"])
    with small.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, ["path", "label", "split"])
        writer.writeheader()
        writer.writerows(rows)
    with scratch_tune.tune_manifest(small, tmp_path / "tune").open(newline="") as lines:
        found = list(csv.DictReader(lines))
    assert sorted(row["path"] for row in found) == sorted(row["path"] for row in rows if row["split"] == "pool")
    assert all((tmp_path / "tune" / row["path"]).read_text() == row["path"] for row in found)
    for label in "ab":
        assert sum(row["label"] == label and row["split"] == "test" for row in found) == 10


def test_pictures_of_arrays_become_files_with_a_manifest(tmp_path):
    arrays = {
        f"{kind}_{part}": np.zeros((4, 28, 28) if kind == "x" else 4, np.uint8)
        for kind in "xy"
        for part in ("train", "test")
    }
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", **arrays)
    source = sets.known_sources(tmp_path, tmp_path / "out")["mnist"]
    sets.write_pictures(source, tmp_path)
    with (source.folder / "manifest.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["split"] for row in rows] == ["pool"] * 4 + ["test"] * 4
    assert all((source.folder / row["path"]).exists() for row in rows)
