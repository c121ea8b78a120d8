"""report.html as people meet it: in a real Chromium, by mouse, keyboard, link, phone and axe."""

from __future__ import annotations

import functools
import shutil
import socket
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from html_support import hostile, many, patched, real, small, uncalibrated

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
if CHROMIUM is None:
    pytest.skip("needs Chromium (CONTRIBUTING.md says how)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("axe_playwright_python")
pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from tolcal.report import html  # noqa: E402

Open = Callable[..., Any]
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
           "--disable-background-networking", "--disable-component-update",
           "--disable-sync")  # fmt: skip


def renamed(content: Any) -> None:
    """Ops named like parts of a page."""
    names = {"relu": "cells", "tanh": "count", "silu": "data", "rmsnorm": "constructor"}
    for cell in content["cells"]:
        cell["op"] = names.get(cell["op"], cell["op"])


def by_kernel(content: Any) -> None:
    """As of `calibrate --by kernel`: two controls in each cell of softmax."""
    content["by"] = "kernel"
    made = []
    for cell in content["cells"]:
        kernels = ["softmax", "softmax_triton"] if cell["op"] == "softmax" else ["control"]
        made += [{**cell, "kernel": kernel} for kernel in kernels]
    content["cells"] = made


def red(content: Any) -> None:
    """All runs red, some beyond any number, environments that change twice in a row."""
    for number, run in enumerate(content["runs"]):
        run["held_out_share"] = (1e9, 50.0, 3.0)[number % 3]
    for number in (9, 10):
        content["runs"][number]["environment"] = f"other {number}"


DOCUMENTS = {
    "renamed": functools.partial(patched, renamed),
    "by_kernel": functools.partial(patched, by_kernel),
    "red": functools.partial(patched, red),
    "uncalibrated": uncalibrated,
    "real": real,
    "small": small,
    "hostile": hostile,
    "many": functools.partial(many, 600),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Pages by name, each written once."""
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(html.render(DOCUMENTS[name]()), "utf-8")
        return path

    return file


@pytest.fixture
def visit(browser: Any, files: Callable[[str], Path]) -> Iterator[Open]:
    """Opens a page and waits until it is drawn; at the end nothing was said, asked or thrown."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []
    opened: list[str] = []

    def open_(name: str = "real", link: str = "", width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url.split("#")[0]))
        opened.append(files(name).as_uri())
        page.goto(opened[-1] + link)
        settled(page)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []
    assert {url for url in asked if not url.startswith("data:")} == set(opened)


def settled(page: Any) -> None:
    """Every chart that is on the page is drawn."""
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg'))"
    )


def back_and_ink(scheme: str) -> tuple[str, str]:
    """Of the page and its charts."""
    light = ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    return light if scheme == "light" else ("rgb(13, 17, 23)", "rgb(230, 237, 243)")


def ink(page: Any, chart: str) -> str:
    """The colour of a chart's labels, as it is drawn."""
    label = page.locator(f"{chart} svg .role-axis-label text").first
    return str(label.evaluate("label => getComputedStyle(label).fill"))


def column(page: Any, number: int) -> list[str]:
    texts: list[str] = page.locator(
        f"#page-table tbody tr > :nth-child({number})"
    ).all_inner_texts()
    return texts


SIZES = pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)


# --- the page as it opens -------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("name", ["real", "small"])
def test_it_opens_and_fits(visit: Open, name: str, width: int, scheme: str) -> None:
    """All charts drawn, no wider than the window, as light or dark as the system."""
    page = visit(name, width=width, scheme=scheme)
    assert page.locator("#page-overview svg").count() == {"real": 4, "small": 5}[name]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == back_and_ink(scheme)[0]
    assert ink(page, "#chart-recall") == back_and_ink(scheme)[1]


@SIZES
def test_axe_finds_nothing(visit: Open, width: int, scheme: str) -> None:
    """No violation of any rule of axe-core, with a cell open."""
    page = visit("real", "#softmax/float16", width, scheme)
    source = (resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    page.evaluate(source)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(f["id"], [n["html"][:200] for n in f["nodes"][:3]]) for f in found] == []


def test_charts_are_described(visit: Open) -> None:
    """To a screen reader each chart is a graphic with a sentence, in a group with a name."""
    page = visit("real", "#softmax/float16")
    names = [c.get_attribute("aria-label") for c in page.locator(".chart[role=group]").all()]
    assert len(set(names)) == 7
    assert "Residuals by run: softmax/float16" in names
    sentences = page.locator(".chart [role=graphics-document]")
    assert sentences.count() == 7
    for sentence in sentences.all():
        assert len(sentence.get_attribute("aria-label")) > 30


def test_what_is_not_calibrated_yet_is_shown_as_far_as_it_goes(visit: Open) -> None:
    """Residuals without lines; the figures that lack data say what they need."""
    page = visit("uncalibrated", "#softmax/float32")
    assert page.locator("#page-cell svg").count() == 1
    facts = page.locator("#page-cell dd").first.inner_text()
    assert facts == (
        "uncalibrated: needs 178 more runs (712 rows of a control); has 8 rows of 2 runs"
    )
    assert "Needs held-out runs" in page.locator("#page-overview").inner_text()


# --- links ----------------------------------------------------------------------------------


def test_a_link_opens_its_cell(visit: Open) -> None:
    """``#softmax/float16``: title, focus, facts, charts, and the line that replays the worst."""
    page = visit("real", "#softmax/float16")
    assert page.title() == "softmax/float16 - tolcal report"
    assert page.evaluate("document.activeElement.id") == "page-cell-title"
    assert page.locator("#page-cell svg").count() == 3
    assert page.locator("#page-cell table tbody th").all_inner_texts() == [
        "softmax", "softmax_triton", "softmax_float16_sum_buggy", "softmax_llm_buggy",
        "softmax_triton_buggy",
    ]  # fmt: skip
    plots = next(
        c.plots for c in real().proposal.cells if (c.op, c.dtype) == ("softmax", "float16")
    )
    assert plots is not None
    line = f"tolcal replay softmax:{plots.kernels[0].shapes[0].case}"
    page.get_by_role("button", name=f"Copy {line}").first.click()
    page.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == line


def test_back_and_on(visit: Open) -> None:
    """Links of the table, next, previous, back, Escape and Close lead where they should."""
    page = visit("real")
    page.get_by_role("link", name="gelu/float32").click()
    settled(page)
    assert page.locator("#page-cell-title").inner_text() == "gelu/float32"
    links = column(page, 1)
    after = links[links.index("gelu/float32") + 1]
    page.get_by_role("button", name="Next cell").click()
    page.wait_for_url(f"**#{after}")
    settled(page)
    assert page.locator("#page-cell-title").inner_text() == after
    page.get_by_role("button", name="Previous cell").click()
    page.wait_for_url("**#gelu/float32")
    settled(page)
    page.go_back()
    page.wait_for_url(f"**#{after}")
    settled(page)
    page.keyboard.press("Escape")
    page.wait_for_url("**#page-cells")
    assert page.locator("#page-cell").is_hidden()
    assert page.title() == "tolcal report"


def follow(page: Any, link: str) -> list[str]:
    """The cells that the table then lists."""
    page.evaluate("link => { location.hash = link; }", link)
    page.wait_for_function("link => location.hash === link", arg=link)
    return sorted(column(page, 1))


def three(op: str) -> list[str]:
    return [f"{op}/{dtype}" for dtype in ("bfloat16", "float16", "float32")]


def test_a_link_to_an_op_lists_it_alone(visit: Open) -> None:
    """Not those that end like it; other filters are put back; the next link puts back its own."""
    page = visit("real", "#elu")
    assert sorted(column(page, 1)) == three("elu")
    assert page.locator("#page-cell").is_hidden()
    page.locator("#page-dtype").select_option("float32")
    page.locator("#page-state").select_option("new")
    page.locator("#page-search").fill("elu")
    assert column(page, 1) == ["elu/float32"]
    assert follow(page, "#attention") == three("attention")
    page.get_by_role("link", name="attention/float16").click()
    page.keyboard.press("Escape")
    page.wait_for_url("**#attention")
    assert sorted(column(page, 1)) == three("attention")
    assert len(follow(page, "#page-cells")) == 42
    assert len(follow(page, "#nothing")) == 42
    assert page.locator("#page-count").inner_text() == (
        "There is no op nothing here: 42 of 42 cells"
    )
    page.locator("#page-dtype").select_option("float32")
    page.locator("#page-op").select_option("gelu")
    page.wait_for_url("**#gelu")
    assert column(page, 1) == ["gelu/float32"]
    page.locator("#page-op").select_option("")
    page.wait_for_url("**#page-cells")
    assert len(column(page, 1)) == 14


@pytest.mark.parametrize("op", ["cells", "count", "data", "constructor"])
def test_an_op_named_like_a_part_of_the_page_has_its_link(visit: Open, op: str) -> None:
    """No id of the page is a name that an op may have."""
    page = visit("renamed", f"#{op}")
    assert sorted(column(page, 1)) == three(op)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert [i for i in ids if "-" not in i] == []


def test_cells_by_kernel_have_links(visit: Open) -> None:
    """``#softmax/float16`` lists the controls of the cell, and each opens by its own."""
    page = visit("by_kernel", "#softmax/float16")
    assert column(page, 1) == ["softmax/float16/softmax", "softmax/float16/softmax_triton"]
    assert page.locator("#page-cell").is_hidden()
    page.get_by_role("link", name="softmax/float16/softmax_triton").click()
    settled(page)
    assert page.locator("#page-cell-title").inner_text() == "softmax/float16/softmax_triton"
    assert page.locator("#page-cell svg").count() == 3


def test_a_link_to_nothing_says_so(visit: Open) -> None:
    """Whatever it holds, as text."""
    page = visit("real", "#%3Cimg%20src=x%3E/float16")
    assert page.locator("#page-cell-title").inner_text() == "<img src=x>/float16"
    assert "no cell of this name" in page.locator("#page-cell-body").inner_text()
    page = visit("real", "#__proto__/constructor%")
    assert page.locator("#page-cell").is_hidden()


# --- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "field"), [("now", "allowed_now"), ("tightening", "tightening")])
def test_columns_sort_by_value(visit: Open, key: str, field: str) -> None:
    """By number, not by its text; a second press turns round; what has no value stays last."""
    page = visit("real")
    cells = {f"{c.op}/{c.dtype}": c for c in real().proposal.cells}
    head = page.locator(f"#page-table th[data-key={key}]")
    for order, downwards in (("descending", True), ("ascending", False)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == order
        values = [getattr(cells[link], field) for link in column(page, 1)]
        known = [v for v in values if v is not None]
        assert known == sorted(known, reverse=downwards)
        assert values[: len(known)] == known
        assert len(known) < len(values) == 42
    page.locator("#page-table th[data-key=link]").get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert column(page, 1) == sorted(cells)


def test_cells_are_found(visit: Open) -> None:
    """By words of name and shape, by state, by dtype; the count says how many."""
    page = visit("real")
    page.locator("#page-search").fill("SOFT float16")
    assert sorted(column(page, 1)) == ["softmax/bfloat16", "softmax/float16"]
    assert page.locator("#page-count").inner_text() == "2 of 42 cells"
    page.locator("#page-search").fill("")
    page.locator("#page-dtype").select_option("bfloat16")
    assert len(column(page, 1)) == 14
    assert all(link.endswith("/bfloat16") for link in column(page, 1))
    page.locator("#page-state").select_option("new")
    assert len(column(page, 1)) == 14
    page.locator("#page-search").fill("nothing like that")
    assert column(page, 1) == []
    assert page.locator("#page-count").inner_text() == "0 of 42 cells"


def test_many_cells_come_in_parts(visit: Open) -> None:
    """The first 200 at once, all of 600 on demand; one without charts says so."""
    page = visit("many")
    assert page.locator("#page-table tbody tr").count() == 200
    page.get_by_role("button", name="Show all 600").click()
    assert page.locator("#page-table tbody tr").count() == 600
    assert page.locator("#page-more").is_hidden()
    last = column(page, 1)[-1]
    page.evaluate("link => { location.hash = link; }", f"#{last}")
    page.get_by_text("did not fit into the page").wait_for()


def test_everything_by_keyboard(visit: Open) -> None:
    """Skip link, then the table: sort, open a cell, leave it, with no mouse."""
    page = visit("real")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the table of cells"
    page.keyboard.press("Enter")
    for _ in range(6):  # four filters and the table
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "cell"
    page.keyboard.press("Enter")
    assert column(page, 1)[0] == "attention/bfloat16"
    for _ in range(12):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "attention/bfloat16"
    page.keyboard.press("Enter")
    page.wait_for_url("**#attention/bfloat16")
    settled(page)
    assert page.evaluate("document.activeElement.id") == "page-cell-title"
    page.keyboard.press("Escape")
    assert page.locator("#page-cell").is_hidden()


# --- charts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
def test_every_red_run_is_inside_the_frame(visit: Open, width: int) -> None:
    """No point above the axis, the chart no higher than of good runs, no two words in one place."""
    page = visit("red", width=width)
    found = page.evaluate(
        """() => {
            const chart = document.querySelector("#chart-over_time svg");
            const box = (e) => e.getBoundingClientRect();
            const boxes = (s) => [...chart.querySelectorAll(s)].map(box)
                .map((r) => [r.left, r.top, r.right, r.bottom]);
            const frame = box(chart.querySelector(".background"));
            return {
                height: box(chart).height,
                frame: [frame.left, frame.top, frame.right, frame.bottom],
                points: boxes(".mark-symbol.role-mark path"),
                words: boxes(".mark-text.role-mark text"),
            };
        }"""
    )
    assert found["height"] < 330
    assert len(found["points"]) == 18
    left, top, right, bottom = found["frame"]
    for x0, y0, x1, y1 in [*found["points"], *found["words"]]:
        assert left <= x0 <= x1 <= right
        assert top <= y0 <= y1 <= bottom
    words = found["words"]
    assert len(words) >= 3
    for n, one in enumerate(words):
        for other in words[:n]:
            apart = one[0] >= other[2] or other[0] >= one[2]
            assert apart or one[1] >= other[3] or other[1] >= one[3]


def test_a_kernel_is_known_by_shape_and_by_name(visit: Open) -> None:
    """One legend of shape and colour; a strip with its name for each histogram."""
    page = visit("real", "#softmax/float16")
    kernels = ["softmax", "softmax_triton", "softmax_float16_sum_buggy (buggy)",
               "softmax_llm_buggy (buggy)",
               "softmax_triton_buggy (buggy)"]  # fmt: skip
    labels = page.locator("#cell-spreads .role-legend-label text").all_text_contents()
    assert sorted(labels) == sorted(kernels)
    marks = page.locator("#cell-spreads .role-legend-symbol path")
    assert len({mark.get_attribute("d") for mark in marks.all()}) == len(kernels)
    strips = page.locator("#cell-shares svg text").all_text_contents()
    assert [text for text in strips if text.startswith("softmax")] == kernels
    words = page.locator("#cell-spreads .mark-text.role-mark text").all_text_contents()
    assert "proposed, for the median element" in words


# --- print ------------------------------------------------------------------------------------


def test_print_is_light_and_fits(visit: Open) -> None:
    """Whatever the theme: dark words on white, tables and charts no wider than the sheet."""
    page = visit("real", "#softmax/float16", width=762)
    page.locator("#page-theme").select_option("dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == back_and_ink("light")[1]
    assert ink(page, "#chart-heat") == back_and_ink("light")[1]
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > 763).length"
    )
    assert wide == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 762


def test_print_says_which_rows_are_missing(visit: Open) -> None:
    """On paper nothing can be pressed."""
    page = visit("many")
    page.emulate_media(media="print")
    assert page.locator("#page-cut").inner_text() == (
        'These are the first 200 of 600: "Show all" before printing adds the rest.'
    )
    assert page.locator("#page-count").inner_text() == "600 of 600 cells"
    page.emulate_media(media="screen")
    assert page.locator("#page-cut").is_hidden()
    page.get_by_role("button", name="Show all 600").click()
    page.emulate_media(media="print")
    assert page.locator("#page-cut").inner_text() == ""


# --- theme ----------------------------------------------------------------------------------


def test_the_theme_can_be_chosen_and_stays(visit: Open) -> None:
    """Page and charts follow it at once, and after a reload; "system" gives it back."""
    page = visit("real")

    def colours() -> tuple[str, str]:
        settled(page)
        page.wait_for_function("document.documentElement.dataset.drawing === '0'")
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return back, ink(page, "#chart-heat")

    light, dark = back_and_ink("light"), back_and_ink("dark")
    assert colours() == light
    page.locator("#page-theme").select_option("dark")
    assert colours() == dark
    page.reload()
    assert colours() == dark
    page.locator("#page-theme").select_option("auto")
    assert colours() == light
    page.emulate_media(color_scheme="dark")
    assert colours() == dark


# --- foreign text ---------------------------------------------------------------------------


def test_foreign_names_are_words(visit: Open) -> None:
    """Page, table, cell and charts show them, and nothing of them runs."""
    page = visit("hostile")
    link = page.locator("#page-table tbody a").first
    name = link.inner_text()
    link.click()
    settled(page)
    assert page.locator("#page-cell-title").inner_text() == name
    assert page.title().endswith(" - tolcal report")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert page.locator("#page-cell svg").count() == 3
    assert page.locator("a:not([href^='#'])").count() == 0
    page.locator("#cell-shapes svg .mark-rect path").first.hover(force=True)
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert page.locator("img").count() == 0


def test_the_policy_holds(browser: Any, files: Callable[[str], Path]) -> None:
    """Were text to become a script after all, it would not run, and could ask nobody."""
    page = browser.new_page()
    page.goto(files("small").as_uri())
    settled(page)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        page.evaluate(
            """url => {
                const script = document.createElement("script");
                script.textContent = "window.ran = 1";
                document.body.append(script);
                document.body.insertAdjacentHTML(
                    "beforeend", `<img src="${url}" onerror="window.ran = 1">`);
            }""",
            url,
        )
        assert page.evaluate("url => fetch(url).catch(() => 'refused')", url) == "refused"
        with pytest.raises(BlockingIOError):
            server.accept()  # nobody came
    # Later, as what Playwright itself evaluates may do more than the page.
    later = "new Promise(r => setTimeout(() => { try { r(eval('1')); } catch { r('refused'); } }))"
    assert page.evaluate(later) == "refused"
    assert page.evaluate("window.ran") is None
    page.close()
