"""The charts as Vega-Lite specifications, by Altair; their rows come in as the dataset ``rows``.

What is drawn is never part of a specification: the same one serves any data, and no foreign text
reaches an expression. No sign is by colour alone: shape, dash, place or a number says the same.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import altair as alt

#: Vega-Lite of the specifications, as the scripts beside them must be.
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
#: Shares in steps: up to this, these words, this colour; dark text is readable on each.
STEPS = (
    (0.01, "up to 0.01", "#eef3f8"),
    (0.1, "up to 0.1", "#d3e3f1"),
    (0.5, "up to 0.5", "#b3cfe8"),
    (1.0, "up to 1", "#8fbbe0"),
    (10.0, "up to 10: fails", "#fdc48f"),
    (math.inf, "beyond 10: fails", "#ff9c4f"),
)
#: One a kernel or device; kernels beyond these are left to the table.
SHAPES = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down",
    "M-1,-1L1,1M-1,1L1,-1", "triangle-left", "M0,-1V1M-1,0H1", "triangle-right",
    "M-1,-1H1L-1,1H1Z", "M-1,-1V1L1,-1V1Z",
)  # fmt: skip
_LINES = ["hand-picked", "published rule", "approved", "proposed"]
_LOG = alt.Scale(type="log", nice=False)
_SHAPED = alt.Scale(range=list(SHAPES))
_POWERS = alt.Axis(format="~e", tickCount=8, labelOverlap="greedy")
_TOP = alt.Legend(title=None, orient="top", labelLimit=300)
Spec = dict[str, Any]
Side = Literal["left", "right"]


def _spec(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart,
    **fit: str | int,
) -> Spec:
    """Fit: how the page fits it to the width.

    ``by``: a column, one step of height for each of its values; ``least``: pixels of width a row;
    ``aside``: pixels of a strip that are not its frame.
    """
    spec: Spec = chart.to_dict(validate=True)
    spec.pop("config", None)  # the page's theme is the configuration
    return spec | ({"usermeta": fit} if fit else {})


def _rows() -> alt.NamedData:
    return alt.NamedData("rows")


def _one() -> alt.Chart:
    """For the line at 1, the whole tolerance."""
    return alt.Chart(alt.InlineData(values=[{"one": 1}]))


def _filled() -> alt.Color:
    scale = alt.Scale(domain=[step[1] for step in STEPS], range=[step[2] for step in STEPS])
    legend = alt.Legend(title="share of the tolerance", orient="top", symbolType="square")
    return alt.Color("step:N", scale=scale, legend=legend)


def step(share: float) -> str:
    """The words of a share's step."""
    return next(words for most, words, _ in STEPS if share <= most)


def tightening() -> Spec:
    """One line a cell, from what holds now to the proposal.

    Columns cell, rank, what, value, said, and zero (said is 0, which has no place on the axis).
    """
    y = alt.Y("cell:N", sort=alt.EncodingSortField("rank", op="min"), title=None)
    scale = alt.Scale(type="log", nice=False, padding=18)
    x = alt.X("value:Q", scale=scale, title="allowed of |out - ref|",
              axis=_POWERS)  # fmt: skip
    order = ["now", "published rule", "proposed"]
    base = alt.Chart(_rows()).encode(y=y)
    span = base.mark_rule(opacity=0.5).encode(
        x=alt.X("min(value):Q", scale=scale), x2="max(value):Q"
    )
    # Ring, stroke and triangle, so that none hides the others where they coincide.
    points = base.mark_point(opacity=1, strokeWidth=1.7).encode(
        x=x,
        color=alt.Color("what:N", scale=alt.Scale(domain=order), legend=_TOP),
        shape=alt.Shape("what:N", legend=_TOP, scale=alt.Scale(
            domain=order, range=["circle", "M0,-1V1", "triangle-left"])),
        size=alt.Size("what:N", sort=order, legend=_TOP, scale=alt.Scale(
            domain=order, range=[110, 150, 30])),
        tooltip=["cell:N", "what:N", "said:N"],
    )  # fmt: skip
    nothing = base.transform_filter("datum.zero").mark_text(align="right", dx=-9).encode(
        x=x, text=alt.value("0")
    )  # fmt: skip
    return _spec(
        alt.layer(span, points, nothing).properties(
            width=640, height=alt.Step(15),
            description="What each tolerance allows at the median element, now and as proposed",
        ),
        by="cell",
    )  # fmt: skip


def recall() -> Spec:
    """Columns rule, factor, red, recall (shares), now: recall against false alarms."""
    base = alt.Chart(_rows()).encode(
        x=alt.X("red:Q", axis=alt.Axis(format="%"), title="held-out runs with a false alarm"),
        y=alt.Y("recall:Q", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"),
                title="detectable rows of buggy kernels caught"),
        color=alt.Color("rule:N", sort=["tolcal", "published rule"], legend=_TOP),
    )  # fmt: skip
    dash = alt.StrokeDash("rule:N", sort=["tolcal", "published rule"], legend=None)
    line = base.mark_line(interpolate="linear").encode(order="factor:Q", strokeDash=dash)
    points = base.mark_point(filled=True, size=30).encode(
        tooltip=["rule:N", alt.Tooltip("factor:Q", format=".3~g", title="tolerance times"),
                 alt.Tooltip("red:Q", format=".1%"), alt.Tooltip("recall:Q", format=".2%")],
    )  # fmt: skip
    now = base.transform_filter("datum.now").mark_point(size=220, strokeWidth=2)
    words = base.transform_filter("datum.now").mark_text(align="left", dx=12, dy=-8).encode(
        text="rule:N"
    )  # fmt: skip
    return _spec(
        alt.layer(line, points, now, words).properties(
            width=640, height=320,
            description="Share of detectable rows caught against share of held-out runs with a "
            "false alarm, as every tolerance is multiplied by a factor",
        )
    )  # fmt: skip


def over_time() -> Spec:
    """One point a run, within the axis.

    Columns number, started, share (as drawn), said, device, environment, changed; edge (the
    number of a share beyond the axis) and word (the side of the words of a change), or null.
    """
    base = alt.Chart(_rows()).encode(
        x=alt.X("number:Q", scale=alt.Scale(nice=False, zero=False, padding=40),
                title="run, the oldest first",
                axis=alt.Axis(tickMinStep=1, format="d", grid=False)),
    )  # fmt: skip
    y = alt.Y("share:Q", scale=alt.Scale(type="log", nice=False, padding=24),
              axis=alt.Axis(format="~g", tickCount=5, labelOverlap="greedy"),
              title="largest share of a tolerance")  # fmt: skip
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=y,
        color=alt.Color("device:N", legend=_TOP),
        shape=alt.Shape("device:N", legend=_TOP, scale=_SHAPED),
        tooltip=["started:N", "device:N", "environment:N", alt.Tooltip("said:N", title="share")],
    )  # fmt: skip
    edges = base.transform_filter("isValid(datum.edge)").encode(y=y, text="edge:N")
    above = edges.transform_filter("datum.share > 1").mark_text(baseline="bottom", dy=-8)
    below = edges.transform_filter("datum.share < 1").mark_text(baseline="top", dy=8)
    limit = _one().mark_rule(strokeDash=[6, 3]).encode(y="one:Q")
    marks = base.transform_filter("datum.changed").mark_rule(
        strokeDash=[2, 3], strokeWidth=2, aria=False
    )
    sides: dict[Side, tuple[Side, int]] = {"right": ("left", 4), "left": ("right", -4)}
    words = [
        base.transform_filter(f"datum.word == '{side}'")
        .mark_text(align=align, baseline="bottom", dx=dx, dy=-3)
        .encode(y=alt.value("height"), text=alt.value("new environment"))
        for side, (align, dx) in sides.items()
    ]
    return _spec(
        alt.layer(limit, marks, *words, points, above, below).properties(
            width=640, height=240,
            description="The largest share that each run used of tolerances fitted without it; "
            "vertical lines mark a changed environment",
        )
    )  # fmt: skip


def heat() -> Spec:
    """The largest share by kernel, dtype and size of shape.

    Columns kernel, dtype, size, share, step, text, dims.
    """
    base = alt.Chart().encode(
        x=alt.X("size:O", title="product of the dims, up to", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("kernel:N", title=None),
        tooltip=["kernel:N", "dtype:N", "size:O", alt.Tooltip("share:Q", format=".2~g"), "dims:N"],
    )
    cells = base.mark_rect(stroke="#888", strokeWidth=0.3).encode(color=_filled())
    numbers = base.mark_text(fontSize=8, color="#111").encode(text="text:N")
    return _spec(
        alt.layer(cells, numbers, data=_rows())
        .properties(width=alt.Step(27), height=alt.Step(15))
        .facet(column=alt.Column("dtype:N", title=None))
        .properties(
            description="The largest share of the tolerance that controls use, by kernel, dtype "
            "and size of shape",
        )
    )


def devices() -> Spec:
    """Columns cell, device, median: the median residual of the controls on each device."""
    return _spec(
        alt.Chart(_rows())
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("median:Q", scale=_LOG, axis=_POWERS,
                    title="median of the records' largest residuals"),
            y=alt.Y("cell:N", title=None),
            color=alt.Color("device:N", legend=_TOP),
            shape=alt.Shape("device:N", legend=_TOP, scale=_SHAPED),
            tooltip=["cell:N", "device:N", alt.Tooltip("median:Q", format=".2e")],
        )
        .properties(
            width=640, height=alt.Step(15),
            description="Median residual of the controls of each cell, by device",
        ),
        by="cell",
    )  # fmt: skip


def spreads() -> Spec:
    """Residuals of one cell by run.

    Columns kernel, number, device, low, q1, middle, q3, high of its rows; rows of ``line`` and
    ``value`` are the tolerances, and ``words`` stand at the ``side`` of some of them.
    """
    boxes = (
        alt.Chart(_rows())
        .transform_filter("isValid(datum.kernel)")
        .encode(
            x=alt.X("number:O", title="run, the oldest first",
                    axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            xOffset="kernel:N",
            color=alt.Color("kernel:N", legend=None),
        )
    )  # fmt: skip
    y = alt.Y("low:Q", scale=alt.Scale(type="log"), title="largest residual of a record",
              axis=alt.Axis(format="~e"))  # fmt: skip
    whiskers = boxes.mark_rule().encode(y=y, y2="high:Q")
    quartiles = boxes.mark_bar(size=4, opacity=0.6).encode(y=alt.Y("q1:Q"), y2="q3:Q")
    middles = boxes.mark_point(size=30, opacity=1, strokeWidth=1.5).encode(
        y=alt.Y("middle:Q"),
        color=alt.Color("kernel:N", legend=_TOP),
        shape=alt.Shape("kernel:N", scale=_SHAPED, legend=_TOP),
        tooltip=["kernel:N", "device:N", alt.Tooltip("low:Q", format=".1e"),
                 alt.Tooltip("middle:Q", format=".1e"), alt.Tooltip("high:Q", format=".1e")],
    )  # fmt: skip
    limits = alt.Chart(_rows()).transform_filter("isValid(datum.line)").encode(y=alt.Y("value:Q"))
    dash = alt.StrokeDash("line:N", legend=None, scale=alt.Scale(
        domain=_LINES, range=[[2, 2], [8, 3], [1, 0], [6, 2, 1, 2]]))  # fmt: skip
    rules = limits.mark_rule(strokeWidth=1.5).encode(strokeDash=dash)
    sides: dict[Side, tuple[str | int, int]] = {"right": ("width", 0), "left": (0, 2)}
    words = [
        limits.transform_filter(f"datum.side == '{side}'")
        .mark_text(align=side, baseline="bottom", dx=dx, dy=-2)
        .encode(x=alt.value(at), text="words:N")
        for side, (at, dx) in sides.items()
    ]
    return _spec(
        alt.layer(whiskers, quartiles, middles, rules, *words)
        .resolve_scale(color="independent", shape="independent")  # for one legend of both
        .properties(
            width=640, height=320,
            description="Largest residuals of the records of each run, by kernel, with the "
            "tolerances as lines",
        ),
        least=7,  # pixels a row
    )  # fmt: skip


def shares() -> Spec:
    """A strip a kernel. Columns kernel, role, low, high, part: its records in each bin."""
    base = alt.Chart().encode(
        x=alt.X("low:Q", scale=_LOG, title="share of the tolerance (beyond 1 fails)",
                axis=alt.Axis(format="~g", values=[0.001, 0.01, 0.1, 1, 10, 100, 1000])),
        y=alt.Y("part:Q", stack=None, axis=alt.Axis(format="%", tickCount=2), title=None),
        tooltip=["kernel:N", alt.Tooltip("low:Q", format=".2~g", title="from"),
                 alt.Tooltip("high:Q", format=".2~g", title="to"),
                 alt.Tooltip("part:Q", format=".1%")],
    )  # fmt: skip
    areas = base.mark_area(interpolate="step-after", opacity=0.6, line=True).encode(
        color=alt.Color("role:N", legend=None, scale=alt.Scale(domain=["control", "buggy"]))
    )
    limit = alt.Chart().mark_rule(strokeWidth=2, aria=False).encode(x=alt.datum(1))
    header = alt.Header(labelOrient="top", labelAnchor="start", labelAngle=0, labelPadding=-8,
                        labelLimit=500)  # fmt: skip
    controls_first = alt.EncodingSortField("role", op="min", order="descending")
    return _spec(
        alt.layer(areas, limit, data=_rows())
        .properties(width=560, height=44)
        .facet(row=alt.Row("kernel:N", sort=controls_first, title=None, header=header),
               spacing=14)
        .properties(
            description="Buggy kernels against controls: how much of the tolerance their records "
            "use",
        ),
        aside=60,
    )  # fmt: skip


def shapes() -> Spec:
    """Columns kernel, dims, share, step, text: the largest share of each shape."""
    base = alt.Chart(_rows()).encode(
        y=alt.Y("dims:N", title=None, sort=alt.EncodingSortField("share", op="max",
                                                                 order="descending")),
        x=alt.X("kernel:N", title=None, axis=alt.Axis(orient="top", labelAngle=-30)),
        tooltip=["kernel:N", "dims:N", alt.Tooltip("share:Q", format=".2~g")],
    )  # fmt: skip
    cells = base.mark_rect(stroke="#888", strokeWidth=0.3).encode(color=_filled())
    numbers = base.mark_text(fontSize=9, color="#111").encode(text="text:N")
    return _spec(
        alt.layer(cells, numbers).properties(
            width=640, height=alt.Step(15),
            description="The largest share of the tolerance by kernel and shape",
        ),
        by="dims",
    )  # fmt: skip


#: Charts of the whole and of one cell, by the name of their rows.
WHOLE = {
    "tightening": tightening,
    "recall": recall,
    "over_time": over_time,
    "heat": heat,
    "devices": devices,
}
CELL = {"spreads": spreads, "shares": shares, "shapes": shapes}
