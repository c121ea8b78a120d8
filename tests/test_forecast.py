"""The tail model on the committed history, and how it is put into words."""

from __future__ import annotations

import pandas as pd
import pytest
from report_support import make_proposal
from tests_support import DATA

from tolcal import calibrate, history
from tolcal.model import Forecast, HeldOutRows, Proposal
from tolcal.report import text


def claim(bad: int = 0, runs: int = 60, **changes: object) -> str:
    """What is said of a proposal with that many red runs."""
    foreseen = {"rate": 4e-3, "upper": 12.2e-3, "worst": "layernorm/float32",
                "more_runs": 120} | changes  # fmt: skip
    held = HeldOutRows(rows=1000, false_alarms=bad, runs=runs, runs_with_false_alarms=bad)
    return text.forecast_claim(make_proposal(held_out=held, forecast=Forecast(**foreseen)))  # type: ignore[arg-type]


def test_words() -> None:
    assert claim() == (
        "If tails continue as seen, at most about 13 in 1,000 runs red (central 4; a model "
        "figure, for the same ops, inputs, GPU and software): the budget of 1 in 1,000 is not "
        "shown to hold, which needs about 120 more runs, most for layernorm/float32"
    )
    assert claim(rate=4.01e-5, upper=9.1e-4, worst="", more_runs=0) == (
        "If tails continue as seen, at most about 1.0 in 1,000 runs red (central 0.05; a model "
        "figure, for the same ops, inputs, GPU and software): within the budget of 1 in 1,000"
    )
    assert claim(worst="", more_runs=0).endswith("of 1 in 1,000 is not shown to hold")
    assert text.forecast_claim(make_proposal()) == ""
    assert claim(rate=0.0, upper=0.0, worst="", more_runs=0) == (
        "No error was seen, so the tail model says nothing of rarer ones, nor of the budget of 1 "
        "in 1,000"
    )


@pytest.mark.parametrize(("bad", "upper", "allowed"), [
    (1, 12.2e-3, True),  # 1 of 60 at 12 in 1,000: half of all histories
    (3, 12.2e-3, True),  # P(3 or more) = 3.4 %
    (4, 12.2e-3, False),  # 0.6 %
    (1, 0.0, False),
    (60, 1.0, True),
])  # fmt: skip
def test_a_model_that_the_runs_contradict_is_dropped(bad: int, upper: float, allowed: bool) -> None:
    said = claim(bad, upper=upper)
    assert said.startswith("If tails") is allowed
    if not allowed:
        assert f"{bad} of 60 held-out runs red is more than" in said
        assert "is not met" in said


def fitted(frame: pd.DataFrame, margin: float = 2.0) -> Proposal:
    """A proposal of those rows."""
    return calibrate.calibrate(frame, margin=margin)


def test_on_the_committed_history() -> None:
    """A wider margin is quieter; explore rows alone count; another process says the same."""
    frame = history.read([DATA / "h200-history.parquet"])
    frame = frame[frame["op"].isin(["layernorm", "gelu", "relu"])]
    two, four = (fitted(frame, margin).forecast for margin in (2.0, 4.0))
    assert two is not None
    assert four is not None
    assert 0 < four.rate < two.rate < two.upper < 0.5
    assert two.worst.startswith("layernorm/")  # gelu's residuals are bounded, relu has none
    gate = frame["case_set"] == "gate"
    assert fitted(frame[~gate]).forecast == two
    assert fitted(frame, 2.0).forecast == two
    # The worst row made far worse cannot but raise it.
    control = (frame["op"] == "gelu") & (frame["role"] == "control") & ~gate
    worst = frame["scaled_max"].where(control).idxmax()
    enveloped = [n for n in frame.columns if n.startswith(("envelope", "scaled_max"))]
    worse = frame.copy()
    worse.loc[worst, enveloped] *= 50
    raised = fitted(worse).forecast
    assert raised is not None
    assert raised.rate > two.rate
