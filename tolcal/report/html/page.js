"use strict";
// Everything from the data enters the page by textContent or as rows of a chart.
(() => {
  // No op can be named like an id: names have no hyphen.
  const $ = (id) => document.getElementById(`page-${id}`);
  const data = JSON.parse($("data").textContent);
  const expand = (table) =>
    table.rows.map((row) => {
      const one = {};
      table.columns.forEach((name, i) => {
        if (row[i] !== null) one[name] = row[i];
      });
      return one;
    });
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // --- theme ---------------------------------------------------------------------------------
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("tolcal-theme"); } catch { return null; }
  };
  const store = (value) => {
    try { localStorage.setItem("tolcal-theme", value); } catch { /* private mode */ }
  };
  // Colours are those of the style, so that a chart follows the theme, and a printer, by itself.
  const config = () => {
    const [text, line] = ["var(--text)", "var(--grid)"];
    return {
      background: null,
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line,
        tickColor: line, titleFontWeight: "normal", gridOpacity: 0.5 },
      legend: { labelColor: text, titleColor: text, symbolFillColor: text,
        symbolStrokeColor: text, columns: innerWidth < 640 ? 1 : 3 },
      header: { labelColor: text, titleColor: text },
      text: { color: text },
      rule: { color: text },
      range: { category: [1, 2, 3, 4, 5, 6].map((i) => `var(--c${i})`) },
    };
  };

  // --- charts --------------------------------------------------------------------------------
  const drawn = new Map(); // element -> [specification, rows]
  const draw = async (element) => {
    const [template, rows] = drawn.get(element);
    const spec = { ...structuredClone(template), datasets: { ...template.datasets, rows } };
    const { by, least = 0, aside } = spec.usermeta ?? {};
    if (aside) { // one strip above the other
      spec.spec.width = Math.max(180, element.clientWidth - aside);
    } else if (!spec.facet) {
      spec.width = Math.max(240, element.clientWidth, least * rows.length);
      if (by) spec.height = spec.height.step * new Set(rows.map((row) => row[by])).size;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    // The inner element gets a role and words of its own. Errors alone are logged: a layer without
    // rows (a cell without tolerances has no lines) is a warning each time.
    await vegaEmbed(element.firstElementChild, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
      logLevel: 1, config: config(),
    });
  };
  // One after the other, so that a page that is left midway never draws into what is gone.
  let queue = Promise.resolve();
  let drawing = 0;
  const count = (change) => { root.dataset.drawing = String(drawing += change); };
  const schedule = (element) => {
    count(1);
    queue = queue.then(() => element.isConnected && draw(element)).finally(() => count(-1));
    return queue;
  };
  const show = (element, spec, table) => {
    drawn.set(element, [spec, expand(table)]);
    return schedule(element);
  };
  const redraw = () => {
    for (const element of [...drawn.keys()]) {
      if (element.isConnected) schedule(element); else drawn.delete(element);
    }
  };

  // --- the table of all cells ----------------------------------------------------------------
  const cells = expand(data.cells);
  const opOf = (cell) => cell.link.split("/")[0];
  const dtypeOf = (cell) => cell.link.split("/")[1];
  const STEP = 200;
  let most = STEP;
  let unknown = ""; // an op that a link names and that is not here
  let sorted = null; // [column, descending]
  const plain = (x) => x === undefined ? "-" : String(x);
  const said = (i) => (x, cell) => cell.said[i];
  // title, key, number?, how it is shown, hidden on narrow screens?
  const COLUMNS = [
    ["cell", "link", false],
    ["state", "state", false, plain],
    ["allowed now", "now", true, said(0)],
    ["proposed", "proposed", true, said(1)],
    ["tighter", "tightening", true, said(2)],
    ["recall", "recall", true, said(3)],
    ["records", "rows", true, plain, true],
    ["runs", "runs", true, plain, true],
    ["red", "red", true, plain, true],
    ["largest share", "share", true, said(4)],
    ["worst case", "dims", false, plain],
    ["replay", "replay", false],
  ];
  const filtered = () => {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [op, state, dtype] = [$("op").value, $("state").value, $("dtype").value];
    const kept = cells.filter((cell) => {
      const text = `${cell.link} ${cell.state} ${cell.dims}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!op || opOf(cell) === op)
        && (!state || cell.state === state) && (!dtype || dtypeOf(cell) === dtype);
    });
    if (!sorted) return kept;
    const [key, descending] = sorted;
    const order = (a, b) => typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
    return kept.sort((a, b) => { // what has no value comes last, whichever way
      if (a[key] === undefined || b[key] === undefined) {
        return (a[key] === undefined) - (b[key] === undefined);
      }
      return descending ? order(b[key], a[key]) : order(a[key], b[key]);
    });
  };
  // The list as it is filtered by op has a link of its own.
  const listed = () => $("op").value ? `#${encodeURIComponent($("op").value)}` : "#page-cells";
  const clear = () => {
    for (const id of ["search", "op", "state", "dtype"]) $(id).value = "";
    most = STEP;
  };
  const list = () => {
    fill();
    $("cells").scrollIntoView();
  };
  const href = (link) => `#${link.split("/").map(encodeURIComponent).join("/")}`;
  const command = (line) => {
    const span = make("span");
    if (!line) return span;
    const code = make("code", line);
    const button = make("button", "copy", { type: "button", "aria-label": `Copy ${line}` });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(line);
        button.textContent = "copied";
      } catch { // not allowed here: leave it selected, for the keyboard
        getSelection().selectAllChildren(code);
      }
    });
    span.append(code, " ", button);
    return span;
  };
  const fill = () => {
    const found = filtered();
    const rows = found.slice(0, most).map((cell) => {
      const row = make("tr");
      COLUMNS.forEach(([, key, number, text, wide]) => {
        const entry = make(key === "link" ? "th" : "td", text ? text(cell[key], cell) : undefined);
        if (key === "link") {
          entry.scope = "row";
          entry.append(make("a", cell.link, { href: href(cell.link) }));
        } else if (key === "replay") {
          entry.append(command(cell.replay));
        }
        entry.className = `${number ? "n" : ""} ${wide ? "wide" : ""}`.trim();
        row.append(entry);
      });
      return row;
    });
    $("table").tBodies[0].replaceChildren(...rows);
    $("count").textContent = `${unknown ? `There is no op ${unknown} here: ` : ""}${found.length} of `
      + `${cells.length} cells`;
    $("cut").textContent = found.length > most
      ? `These are the first ${most} of ${found.length}: "Show all" before printing adds the rest.`
      : "";
    $("more").hidden = found.length <= most;
    $("more").textContent = `Show all ${found.length}`;
    for (const head of $("table").tHead.rows[0].cells) {
      const mine = sorted && sorted[0] === head.dataset.key;
      head.setAttribute("aria-sort", mine ? (sorted[1] ? "descending" : "ascending") : "none");
      head.querySelector("span").textContent = mine ? (sorted[1] ? " ▼" : " ▲") : "";
    }
  };
  const prepare = () => {
    COLUMNS.forEach(([title, key, number, , wide]) => {
      const head = make("th", undefined, { scope: "col", "data-key": key });
      head.className = `${number ? "n" : ""} ${wide ? "wide" : ""}`.trim();
      const button = make("button", title, { type: "button" });
      button.addEventListener("click", () => {
        const again = sorted && sorted[0] === key;
        sorted = [key, again ? !sorted[1] : number];
        fill();
      });
      head.append(button, make("span", "", { "aria-hidden": "true" }));
      $("table").tHead.rows[0].append(head);
    });
    const choices = (id, values) => {
      for (const value of [...new Set(values)].sort()) $(id).append(make("option", value));
    };
    choices("state", cells.map((cell) => cell.state));
    choices("dtype", cells.map(dtypeOf));
    choices("op", cells.map(opOf));
    $("op").addEventListener("input", () => { location.hash = listed(); });
    for (const id of ["search", "state", "dtype"]) {
      $(id).addEventListener("input", () => { most = STEP; fill(); });
    }
    $("more").addEventListener("click", () => { most = Infinity; fill(); });
  };

  // --- one cell ------------------------------------------------------------------------------
  const CAPTIONS = {
    spreads: ["Residuals by run", "Of each run's records the largest residual: median (mark), "
      + "quartiles (bar), least and most (line). The approved and the proposed tolerance are drawn "
      + "as the residual they allow at the median element. The largest residual of a record is "
      + "mostly of a larger element, which is allowed more: how much of its own tolerance each "
      + "record uses is below. What is 0 is drawn at the lower edge."],
    shares: ["Buggy against control", "How much of the tolerance the records use, as parts of "
      + "each kernel's records, a strip a kernel. Beyond 1 a record fails; the outermost steps hold "
      + "all beyond."],
    shapes: ["Kernel and shape", "The largest share of the tolerance by kernel and shape."],
  };
  let current = null;
  const kernelTable = (kernels) => {
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const title of ["kernel", "role", "records", "beyond 1", "largest share", "worst case",
      "replay"]) head.append(make("th", title, { scope: "col" }));
    const body = table.createTBody();
    for (const kernel of kernels) {
      const row = body.insertRow();
      row.append(make("th", kernel.kernel, { scope: "row" }));
      for (const text of [kernel.role, kernel.records, kernel.beyond ?? "-", kernel.worst ?? "-",
        kernel.dims]) row.append(make("td", String(text)));
      row.insertCell().append(command(kernel.replay));
    }
    const scroll = make("div", undefined, { class: "scroll", role: "group", tabindex: "0",
      "aria-label": "Kernels of this cell" });
    scroll.append(table);
    return scroll;
  };
  const open = (link) => {
    const detail = Object.hasOwn(data.details, link) ? data.details[link] : null;
    const known = cells.some((cell) => cell.link === link);
    current = link;
    $("cell-title").textContent = link;
    document.title = `${link} - tolcal report`;
    const body = [];
    const charts = [];
    if (!detail) {
      body.push(make("p", known
        ? "This cell's charts did not fit into the page; the table has its numbers."
        : "There is no cell of this name in this report."));
    } else {
      const list = make("dl");
      for (const [term, text] of detail.facts) list.append(make("dt", term), make("dd", text));
      body.push(list);
      if (detail.kernels.length) body.push(kernelTable(detail.kernels));
      for (const [name, table] of Object.entries(detail.charts)) {
        const [title, caption] = CAPTIONS[name];
        const figure = make("figure");
        const chart = make("div", undefined, { class: "chart scroll", id: `cell-${name}`,
          role: "group", tabindex: "0", "aria-label": `${title}: ${link}` });
        chart.append(make("div"));
        const left = detail.left && name !== "shapes"
          ? ` The last ${detail.left} of the kernels of the table are not drawn.` : "";
        figure.append(make("h3", title), chart, make("figcaption", caption + left));
        body.push(figure);
        charts.push([chart, data.specs[name], table]);
      }
    }
    $("cell-body").replaceChildren(...body);
    $("cell").hidden = false;
    $("cell-title").focus({ preventScroll: true });
    $("cell").scrollIntoView();
    for (const chart of charts) show(...chart);
  };
  const close = () => {
    current = null;
    $("cell").hidden = true;
    $("cell-body").replaceChildren();
    document.title = "tolcal report";
  };
  const route = () => {
    let wanted = "";
    try { wanted = decodeURIComponent(location.hash.slice(1)); } catch { /* not ours */ }
    unknown = "";
    const ops = new Set(cells.map(opOf));
    if (wanted.includes("/")) {
      const parts = wanted.split("/");
      const within = cells.filter((cell) => cell.link.startsWith(`${wanted}/`));
      if (within.length && !cells.some((cell) => cell.link === wanted)) { // one cell a kernel
        close();
        clear();
        [$("op").value, $("dtype").value] = parts;
        list();
      } else {
        open(wanted);
      }
      return;
    }
    close();
    if (ops.has(wanted)) {
      if ($("op").value !== wanted) clear();
      $("op").value = wanted;
      list();
    } else {
      if (!document.getElementById(wanted)) unknown = wanted;
      $("op").value = "";
      if (unknown) list(); else fill();
    }
  };
  const step = (by) => {
    const shown = filtered().map((cell) => cell.link);
    const links = shown.includes(current) ? shown : cells.map((cell) => cell.link);
    const at = links.indexOf(current);
    if (links.length) location.hash = href(links[(at + by + links.length) % links.length]);
  };

  $("theme").value = stored() ?? "auto";
  root.dataset.theme = $("theme").value || "auto";
  $("theme").addEventListener("input", () => {
    root.dataset.theme = $("theme").value;
    store($("theme").value);
  });
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
  addEventListener("hashchange", route);
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("close").addEventListener("click", () => { location.hash = listed(); });
  $("cell").addEventListener("keydown", (event) => {
    if (event.key === "Escape") location.hash = listed();
  });
  prepare();
  fill();
  route();
  for (const [name, chart] of Object.entries(data.charts)) {
    show(document.getElementById(`chart-${name}`), chart.spec, chart.table);
  }
  queue.then(() => { root.dataset.ready = "yes"; });
})();
