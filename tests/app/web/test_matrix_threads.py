"""Matrix products of the page process run on one thread; its children have theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COUNT = """
import json, numpy
from threadpoolctl import threadpool_info
from app.web.matrix_threads import limit_threads
def threads():
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
before = threads()
limit_threads()
numpy.ones((400, 400)) @ numpy.ones((400, 400))
print(json.dumps([before, threads()]))
"""


def test_blas_has_one_thread_and_the_environment_of_children_is_unchanged():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", COUNT], env=environment, check=True, capture_output=True, text=True)
    before, after = json.loads(done.stdout)
    assert before and set(before) == {2} and set(after) == {1}


@pytest.mark.slow(2)
def test_the_server_limits_the_threads():
    code = (
        "import app.web.server; from threadpoolctl import threadpool_info; "
        "print({one['num_threads'] for one in threadpool_info()})"
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "{1}"
