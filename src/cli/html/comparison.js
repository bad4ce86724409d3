// The page of `tenure compare --report`: draws what the block of JSON "comparison" holds, and sorts the table.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("comparison").textContent);
  // Okabe and Ito's colours; dashes and marks tell the series apart without them.
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00", "#808080"];
  const dashes = ["", "7 3", "2 3", "9 3 2 3", "5 2 2 2 2 2", "12 4", "1 2", "4 4"];
  const marks = ["M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M0-5l5 5l-5 5l-5-5z",
    "M-5-4h10l-5 9z", "M-5-1h4v-4h2v4h4v2h-4v4h-2v-4h-4z", "M-4-4l8 8M4-4l-8 8", "M-5 0h10"];
  const svg = (name, attributes, parent) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (parent) parent.append(e);
    return e;
  };
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let u = 0;
    while (u < 4 && n >= 1024) { n /= 1024; ++u; }
    return (u === 0 || Number.isInteger(n) ? n : n.toFixed(2)) + " " + units[u];
  };
  const seconds = (us) => us < 1e4 ? us + " us" : us < 1e6 ? (us / 1e3).toFixed(1) + " ms" : (us / 1e6).toFixed(us < 1e7 ? 2 : 1) + " s";
  const count = (n) => n.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

  // --- timelines ------------------------------------------------------------------------------------------------------
  // `reserved` lists the spans at which it changes: [span, lowest, highest].
  const expand = (changes, n) => {
    const low = new Array(n), high = new Array(n);
    for (let c = 0, i = 0; i < n; ++i) {
      while (c + 1 < changes.length && changes[c + 1][0] <= i) ++c;
      [, low[i], high[i]] = changes[c];
    }
    return [low, high];
  };

  const draw_timeline = (trace, place, on, by_time, cursor) => {
    const width = Math.max(280, place.clientWidth || 700), narrow = width < 560, height = narrow ? 250 : 320;
    const left = narrow ? 62 : 74, right = narrow ? 12 : 112, top = 10, bottom = 26;
    const n = trace.event.length, last = by_time ? trace.end_us : trace.events;
    const x_of = by_time ? trace.t_us : trace.event;
    const x = (i) => left + (width - left - right) * (last > 0 ? (i < n ? x_of[i] : last) / last : 0);
    const shown = trace.rows.filter((_, k) => on[k]);
    const most = Math.max(trace.needed, ...shown.map((r) => r.peak), 1) * 1.04;
    const y = (b) => top + (height - top - bottom) * (1 - b / most);
    const s = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `${trace.name}: bytes live and reserved. Live peak ${bytes(trace.needed)}. ` +
        trace.rows.map((r) => `${r.policy} reserves ${bytes(r.peak)}`).join(", ") + ". Arrow keys read values." });

    let step = 1;
    while (step * (narrow ? 4 : 6) < most) step *= 2;
    for (let b = 0; b <= most; b += step) {
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(b), y2: y(b) }, s);
      svg("text", { x: left - 6, y: y(b) + 4, "text-anchor": "end" }, s).textContent = bytes(b);
    }
    const ticks = narrow ? 2 : 4;
    for (let i = 0; i <= ticks; ++i) {
      const t = svg("text", { x: left + (width - left - right) * i / ticks, y: height - 8,
        "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle" }, s);
      t.textContent = by_time ? seconds(Math.round(last * i / ticks)) : (i === ticks ? "event " : "") + count(Math.round(last * i / ticks));
    }
    // Steps: a span lasts until the next begins.
    const band = (low, high) => {
      let forth = `M${x(0).toFixed(1)} ${y(high[0]).toFixed(1)}`, back = "";
      for (let i = 0; i < n; ++i) {
        forth += `V${y(high[i]).toFixed(1)}H${x(i + 1).toFixed(1)}`;
        back = `L${x(i + 1).toFixed(1)} ${y(low[i]).toFixed(1)}H${x(i).toFixed(1)}` + back;
      }
      return forth + back + "Z";
    };
    const line = (values) => {
      let d = `M${x(0).toFixed(1)} ${y(values[0]).toFixed(1)}`;
      for (let i = 0; i < n; ++i) d += (i > 0 && values[i] === values[i - 1] ? "" : `V${y(values[i]).toFixed(1)}`) + `H${x(i + 1).toFixed(1)}`;
      return d;
    };
    const zero = new Array(n).fill(0);
    svg("path", { d: band(zero, trace.live[1]), fill: "currentColor", "fill-opacity": .13 }, s);
    svg("path", { d: band(zero, trace.live[0]), fill: "currentColor", "fill-opacity": .13 }, s);
    const ends = [];
    trace.rows.forEach((r, k) => {
      if (!on[k]) return;
      const [low, high] = r.expanded ??= expand(r.reserved, n);
      const colour = colours[k % 8];
      if (low.some((v, i) => v !== high[i])) svg("path", { d: band(low, high), fill: colour, "fill-opacity": .18 }, s);
      svg("path", { d: line(high), fill: "none", stroke: colour, "stroke-width": k === trace.best ? 3 : 1.8,
        "stroke-dasharray": dashes[k % 8] }, s);
      for (let m = 0; m < 4; ++m) {
        const at = left + (width - left - right) * (m + (k % 8 + .5) / 8) / 4;
        let i = 0;
        while (i + 1 < n && x(i + 1) <= at) ++i;
        svg("path", { d: marks[k % 8], transform: `translate(${at.toFixed(1)} ${y(high[i]).toFixed(1)})`, fill: colour, stroke: colour }, s);
      }
      ends.push({ k, y: y(high[n - 1]), text: r.policy, colour });
    });
    if (!narrow) { // a label at each line's end, pushed apart
      ends.push({ k: -1, y: Math.min(y(trace.live[0][n - 1]), height - bottom - 2), text: "live", colour: "currentColor" });
      ends.sort((a, b) => a.y - b.y);
      ends.forEach((e, i) => { if (i > 0) e.y = Math.max(e.y, ends[i - 1].y + 13); });
      const over = ends.length ? ends[ends.length - 1].y - (height - bottom + 8) : 0;
      if (over > 0) ends.forEach((e, i) => { e.y = Math.min(e.y, height - bottom + 8 - 13 * (ends.length - 1 - i)); });
      for (const e of ends) {
        if (e.k >= 0) svg("path", { d: marks[e.k % 8], transform: `translate(${width - right + 10} ${e.y}) scale(.8)`, fill: e.colour, stroke: e.colour }, s);
        const t = svg("text", { x: width - right + 18, y: e.y + 4 }, s);
        t.textContent = e.text.length > 14 ? e.text.slice(0, 13) + "\u2026" : e.text;
      }
    }
    const hair = svg("line", { y1: top, y2: height - bottom, stroke: "currentColor", "stroke-dasharray": "2 2", visibility: "hidden" }, s);
    const show = (i) => {
      i = Math.max(0, Math.min(n - 1, i));
      cursor.at = i;
      hair.setAttribute("x1", x(i)); hair.setAttribute("x2", x(i)); hair.setAttribute("visibility", "visible");
      cursor.readout.textContent = `event ${count(trace.event[i])}, ${seconds(trace.t_us[i])}: live ${bytes(trace.live[1][i])}; ` +
        trace.rows.map((r, k) => [r, k]).filter(([, k]) => on[k])
          .map(([r]) => `${r.policy} ${bytes((r.expanded ??= expand(r.reserved, n))[1][i])}`).join(", ");
    };
    s.addEventListener("pointermove", (e) => {
      const at = (e.clientX - s.getBoundingClientRect().left) * width / s.getBoundingClientRect().width;
      let i = 0;
      while (i + 1 < n && x(i + 1) <= at) ++i;
      show(i);
    });
    s.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50, Home: -n, End: n }[e.key];
      if (by === undefined) return;
      e.preventDefault();
      show((cursor.at ?? 0) + by);
    });
    const focused = place.contains(document.activeElement);
    place.replaceChildren(s);
    if (focused) s.focus();
  };

  // --- maps of memory -------------------------------------------------------------------------------------------------
  // Two digits a cell: eighths of it that are live and that wait; "xx": reserved, place unknown.
  const draw_map = (canvas, trace, map) => {
    const width = canvas.clientWidth || 600, cells = map.cells.length / 2;
    const cell = width < 500 ? 5 : 7, columns = Math.floor(width / cell), rows = Math.ceil(cells / columns);
    const scale = Math.max(2, window.devicePixelRatio || 1);
    canvas.width = width * scale; canvas.height = rows * cell * scale;
    canvas.style.height = rows * cell + "px";
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const live = colour("--live"), free = colour("--free"), hatch = colour("--free-ink"), waiting = colour("--waiting"), ink = colour("--ink");
    for (let i = 0; i < cells; ++i) {
      const x = i % columns * cell, y = Math.floor(i / columns) * cell, h = cell - 1;
      const a = map.cells[2 * i], b = map.cells[2 * i + 1];
      const l = a === "x" ? 0 : h * a / 8, w = a === "x" ? 0 : h * b / 8;
      if (l + w < h) {
        g.fillStyle = free; g.fillRect(x, y, h, h);
        g.strokeStyle = hatch; g.lineWidth = .7; g.beginPath();
        g.moveTo(x, y + h); g.lineTo(x + h, y);
        if (a === "x") { g.moveTo(x, y); g.lineTo(x + h, y + h); }
        g.stroke();
      }
      g.fillStyle = live; g.fillRect(x, y + h - l, h, l);
      if (w > 0) {
        g.fillStyle = waiting; g.fillRect(x, y + h - l - w, h, w);
        g.fillStyle = ink; g.fillRect(x + h / 2 - .5, y + h - l - w / 2 - .5, 1.2, 1.2);
      }
    }
    g.strokeStyle = ink; g.lineWidth = 1;
    for (const e of map.edges) {
      const x = e % columns * cell - .5, y = Math.floor(e / columns) * cell;
      g.beginPath(); g.moveTo(x, y - .5); g.lineTo(x, y + cell - .5); g.stroke();
    }
  };

  const redraws = [];
  const redraw_all = () => redraws.forEach((f) => f());
  for (const trace of data.traces) {
    const section = document.getElementById(trace.id);
    const on = trace.rows.map(() => true);
    const place = section.querySelector(".chart");
    if (place) {
      const legend = section.querySelector(".legend"), axis = section.querySelector(".axis");
      const cursor = { readout: section.querySelector(".readout"), at: undefined };
      let by_time = false;
      const redraw = () => draw_timeline(trace, place, on, by_time, cursor);
      trace.rows.forEach((r, k) => {
        const label = document.createElement("label"), box = document.createElement("input");
        box.type = "checkbox"; box.checked = true;
        box.addEventListener("change", () => { on[k] = box.checked; redraw(); });
        const sample = svg("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" });
        svg("line", { x1: 0, x2: 34, y1: 7, y2: 7, stroke: colours[k % 8], "stroke-width": k === trace.best ? 3 : 1.8, "stroke-dasharray": dashes[k % 8] }, sample);
        svg("path", { d: marks[k % 8], transform: "translate(17 7)", fill: colours[k % 8], stroke: colours[k % 8] }, sample);
        label.append(box, sample, r.policy + (k === trace.best ? " (best)" : ""));
        legend.append(label);
      });
      if (trace.end_us > 0) {
        for (const [value, text] of [[false, "by event"], [true, "by time"]]) {
          const label = document.createElement("label"), radio = document.createElement("input");
          radio.type = "radio"; radio.name = "axis-" + trace.id; radio.checked = value === by_time;
          radio.addEventListener("change", () => { by_time = value; redraw(); });
          label.append(radio, " " + text);
          axis.append(label);
        }
      }
      redraws.push(redraw);
    }
    section.querySelectorAll("canvas").forEach((canvas) => {
      const map = trace.rows[+canvas.dataset.row].map;
      if (map) redraws.push(() => draw_map(canvas, trace, map));
    });
  }
  redraw_all();
  let waiting = 0, was = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === was) return; // a phone's bars come and go while it scrolls
    was = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw_all, 100);
  });
  const printing = (on) => { document.documentElement.toggleAttribute("data-print", on); redraw_all(); };
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw_all);

  // --- the table ------------------------------------------------------------------------------------------------------
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const status = document.getElementById("sorted");
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const numeric = head.dataset.kind === "number";
        const empty = (v) => v === "";
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort(([a], [b]) => empty(a) || empty(b) ? empty(a) - empty(b) // what is not known stays below
          : (numeric ? a - b : a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
        body.append(...rows.map(([, row]) => row));
        status.textContent = `sorted by ${button.textContent}, ${down ? "descending" : "ascending"}`;
      });
    });
  }
})();
