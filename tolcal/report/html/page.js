"use strict";
// Everything from the data enters the page by textContent or as rows of a chart.
(() => {
  const $ = (id) => document.getElementById(id);
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
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("tolcal-theme"); } catch { return null; }
  };
  const store = (value) => {
    try { localStorage.setItem("tolcal-theme", value); } catch { /* private mode */ }
  };
  const dark = () => root.dataset.theme === "dark"
    || (root.dataset.theme !== "light" && system.matches);
  const config = () => {
    const [text, line] = dark() ? ["#e6edf3", "#484f58"] : ["#1b1f24", "#d0d7de"];
    return {
      background: null,
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line,
        tickColor: line, titleFontWeight: "normal", gridOpacity: 0.5 },
      legend: { labelColor: text, titleColor: text, symbolFillColor: text,
        symbolStrokeColor: text, ...(innerWidth < 640 ? { columns: 1 } : {}) },
      header: { labelColor: text, titleColor: text },
      text: { color: text },
      rule: { color: text },
      range: { category: dark()
        ? ["#56b4e9", "#ff9c4f", "#2fd0a5", "#e3a1cf", "#e5d352", "#c5ccd3"]
        : ["#0072b2", "#c04a00", "#00795a", "#8a3a7a", "#6b5b00", "#555555"] },
    };
  };

  // --- charts --------------------------------------------------------------------------------
  const drawn = new Map(); // element -> [specification, rows]
  const draw = async (element) => {
    const [template, rows] = drawn.get(element);
    const spec = { ...structuredClone(template), datasets: { ...template.datasets, rows } };
    if (!spec.facet) {
      const { by, least = 0 } = spec.usermeta ?? {};
      spec.width = Math.max(240, element.clientWidth, least * rows.length);
      if (by) spec.height = spec.height.step * new Set(rows.map((row) => row[by])).size;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    // The inner element gets a role and words of its own. Errors alone are logged: a layer without
    // rows (a cell without tolerances has no lines) is a warning each time.
    await vegaEmbed(element.firstElementChild, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
      logLevel: 1, config: config(), tooltip: { theme: dark() ? "dark" : "light" },
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
  const STEP = 200;
  let most = STEP;
  let sorted = null; // [column, descending]
  const short = (x) => x === undefined ? "-" : x === 0 ? "0" : x.toExponential(1).replace("+", "");
  const factor = (x) => {
    if (x === undefined) return "-";
    const shown = x < 1 ? 1 / x : x;
    if (shown < 1.05) return "same";
    return `${shown >= 10 ? shown.toFixed(0) : shown.toFixed(1)}x${x < 1 ? " looser" : ""}`;
  };
  const percent = (x) => x === undefined ? "-" : `${(Math.floor(x * 1000) / 10).toFixed(1)} %`;
  const share = (x) => x === undefined ? "-" : x >= 100 ? x.toExponential(1).replace("+", "")
    : x.toPrecision(2);
  const plain = (x) => x === undefined ? "-" : String(x);
  // title, key, number?, how it is shown, hidden on narrow screens?
  const COLUMNS = [
    ["cell", "link", false],
    ["state", "state", false, plain],
    ["allowed now", "now", true, short],
    ["proposed", "proposed", true, short],
    ["tighter", "tightening", true, factor],
    ["recall", "recall", true, percent],
    ["records", "rows", true, plain, true],
    ["runs", "runs", true, plain, true],
    ["red", "red", true, plain, true],
    ["largest share", "share", true, share],
    ["worst case", "dims", false, plain],
    ["replay", "replay", false],
  ];
  const filtered = () => {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [state, dtype] = [$("state").value, $("dtype").value];
    const kept = cells.filter((cell) => {
      const text = `${cell.link} ${cell.state} ${cell.dims}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!state || cell.state === state)
        && (!dtype || cell.link.split("/")[1] === dtype);
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
        const entry = make(key === "link" ? "th" : "td", text ? text(cell[key]) : undefined);
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
    $("count").textContent = `${found.length} of ${cells.length} cells`;
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
    choices("dtype", cells.map((cell) => cell.link.split("/")[1]));
    for (const id of ["search", "state", "dtype"]) {
      $(id).addEventListener("input", () => { most = STEP; fill(); });
    }
    $("more").addEventListener("click", () => { most = Infinity; fill(); });
  };

  // --- one cell ------------------------------------------------------------------------------
  const CAPTIONS = {
    spreads: ["Residuals by run", "Of each run's records the largest residual: median (mark), "
      + "quartiles (bar), least and most (line). The tolerances are drawn as the residual they "
      + "allow at the median element; elsewhere they allow more or less. A residual of 0 is "
      + "drawn at the lower edge."],
    shares: ["Buggy against control", "How much of the tolerance the records use, as parts of "
      + "each kernel's records. Beyond 1 a record fails; the outermost steps hold all beyond."],
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
        figure.append(make("h3", title), chart, make("figcaption", caption));
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
    if (wanted.includes("/")) {
      open(wanted);
    } else if (wanted && !document.getElementById(wanted)) {
      close();
      $("search").value = `${wanted}/`;
      fill();
      $("cells").scrollIntoView();
    } else {
      close();
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
    redraw();
  });
  system.addEventListener("change", redraw);
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
  $("close").addEventListener("click", () => { location.hash = "#cells"; });
  $("cell").addEventListener("keydown", (event) => {
    if (event.key === "Escape") location.hash = "#cells";
  });
  prepare();
  fill();
  route();
  for (const [name, chart] of Object.entries(data.charts)) {
    show($(`chart-${name}`), chart.spec, chart.table);
  }
  queue.then(() => { root.dataset.ready = "yes"; });
})();
