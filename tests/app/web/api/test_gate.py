"""The rate limit of the API."""

from __future__ import annotations

import pytest

from app.web.api.gate import RateLimit


def test_the_rate_refills_evenly():
    rate = RateLimit(60)
    assert [rate.seconds_to_wait("a", 0.0) for _ in range(61)] == [0.0] * 60 + [pytest.approx(1.0)]
    assert rate.seconds_to_wait("a", 0.5) == pytest.approx(0.5)
    assert rate.seconds_to_wait("a", 1.0) == 0.0 and rate.seconds_to_wait("b", 1.0) == 0.0
