"""Importance-sampling coresets, the baselines for logistic regression and mixtures: draw by sensitivity, weight by 1/(m
q).

    logistic   q_i ~ n / (1 + sum_k |G_k| exp(-R |mean of G_k - z_i|)),  z_i = y_i x_i, G_k k-means clusters of z
               (Huggins, Campbell and Broderick, 2016)
    mixtures   q_i ~ d_i^2 / mean d^2 + 2 mean_{j in cluster} d_j^2 / mean d^2 + 4 n / |cluster|,  d_i the distance to
    and means  the nearest of k centers by k-means++ (Lucic, Faulkner, Krause and Feldman, 2018)

Drawing with replacement and weights 1 / (m q_i) keep the weighted loss unbiased.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus

FloatArray = NDArray[np.float64]


def sample(
    probabilities: FloatArray, size: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], FloatArray]:
    """(rows, weights), rows distinct: `size` draws with replacement; a row drawn twice has twice the weight."""
    drawn = generator.choice(len(probabilities), size=size, p=probabilities)
    rows, counts = np.unique(drawn, return_counts=True)
    return rows, counts / (size * probabilities[rows])


def logistic_sensitivity(signed: FloatArray, n_clusters: int, radius: float, seed: int) -> FloatArray:
    """(n,) sampling probabilities for rows z = y x (n, d); `radius` bounds the norm of the parameters."""
    clusters = KMeans(n_clusters, n_init=1, random_state=seed).fit(signed)
    sizes = np.bincount(clusters.labels_, minlength=n_clusters)
    proximity = np.exp(-radius * clusters.transform(signed))  # (n, k)
    raw = len(signed) / (1.0 + proximity @ sizes)
    probabilities: FloatArray = raw / raw.sum()
    return probabilities


def clustering_sensitivity(x: FloatArray, n_clusters: int, seed: int) -> FloatArray:
    """(n,) sampling probabilities for k-means and Gaussian mixtures on rows x (n, d)."""
    centers, _ = kmeans_plusplus(x, n_clusters, random_state=seed)
    squared = ((x[:, None] - centers[None]) ** 2).sum(2)
    nearest, distance = squared.argmin(1), squared.min(1)
    sizes = np.bincount(nearest, minlength=n_clusters)
    within = np.bincount(nearest, weights=distance, minlength=n_clusters) / np.maximum(sizes, 1)
    scale = max(float(distance.mean()), 1e-300)
    raw = distance / scale + 2 * within[nearest] / scale + 4 * len(x) / sizes[nearest]
    probabilities: FloatArray = raw / raw.sum()
    return probabilities
