"""A report meets faults of GitHub at each of its calls: nothing is lost, nothing is there twice."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest
from github_site import BAD, CHANGED, Site, claims, new_site
from github_support import hub

from tolcal.github import report
from tolcal.github.client import ApiError

__all__ = ["hub", "new_site"]

FILES = {"corpus/softmax/kernels/softmax_triton.py": CHANGED}
#: Far more calls than a report makes, and fewer.
MOST, LEAST = 60, 15


@pytest.fixture(autouse=True)
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page takes half a second and makes no call."""
    monkeypatch.setitem(sys.modules, "altair", None)


def finished(site: Site) -> dict[str, Any]:
    """What is shown at the end: one comment, one check with its annotation once."""
    found = site.written
    assert len(found["comments"]) == 1
    (check,) = found["checks"]
    assert check[1]["status"] == "completed"
    assert len(check[2]) == 1
    return found


def test_faults_at_every_call_in_turn(new_site: Site) -> None:
    """Complaint 15: an error of the server, a rate limit and a cut connection leave no trace."""
    site = new_site
    job = site.job(site.measure(site.pull(FILES), claims(1, softmax_triton=BAD)))
    assert report.report(site.client(), site.inputs, job) == 1
    expected = finished(site)
    for n in range(MOST):
        site.forget()
        # One after the other, at the same call.
        first = site.hub.fail(after=n, status=500)
        site.hub.fail(after=n, status=429, headers={"retry-after": "7"})
        site.hub.fail(after=n, status="drop")
        assert report.report(site.client(), site.inputs, job) == 1
        assert finished(site) == expected
        if first.times:
            break  # it was beyond the last call
    assert LEAST <= n < MOST - 1


def test_every_answer_in_turn_is_lost(new_site: Site) -> None:
    """What took effect is found again, and not done twice."""
    site = new_site
    job = site.job(site.measure(site.pull(FILES), claims(1, softmax_triton=BAD)))
    assert report.report(site.client(), site.inputs, job) == 1
    expected = finished(site)
    for n in range(MOST):
        site.forget()
        fault = site.hub.fail(after=n, status="drop", effect=True)
        assert report.report(site.client(), site.inputs, job) == 1
        assert finished(site) == expected
        if fault.times:
            break
    assert LEAST <= n < MOST - 1


def test_an_outage_from_every_call_on(new_site: Site) -> None:
    """A report that gives up leaves nothing that a second one doesn't complete."""
    site = new_site
    job = site.job(site.measure(site.pull(FILES), claims(1, softmax_triton=BAD)))
    assert report.report(site.client(), site.inputs, job) == 1
    expected = finished(site)
    for n in range(MOST):
        site.forget()
        fault = site.hub.fail(after=n, status=503, times=1000)
        with contextlib.suppress(ApiError):
            report.report(site.client(), site.inputs, job)
        site.hub.faults.clear()
        if fault.times == 1000:
            break
        assert report.report(site.client(), site.inputs, job) == 1
        assert finished(site) == expected
    assert LEAST <= n < MOST - 1
