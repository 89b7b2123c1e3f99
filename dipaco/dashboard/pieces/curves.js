// Curves: quality against cost, and speed.

const FIGURES = [["perplexity", "perplexity"], ["losses", "losses of paths"], ["norms", "gradient norms"], ["speed", "tokens/s"]];
const AGAINST = [["steps", "steps"], ["tokens", "tokens"], ["bytes", "bytes per machine"], ["seconds", "machine time"]]; // and the time over each link
const curves = {figure: "perplexity", against: "steps", hidden: new Set(), plotted: null};
const MOST_LINES = 64, BINS = 60, MOST_NAMED = 12, NAMED_FROM = 560; // Ends of so many lines are named, on a plot of so many pixels.
const timeAt = link => `time at ${link} Mbit/s`;
const linksOf = points => Object.keys(points?.link_seconds ?? {});
const costOf = (point, against) => point[against] ?? point.link_seconds[against];

function costs() { // [name, title] of everything that perplexity may be drawn against
  return [...AGAINST, ...linksOf(Object.values(run.document.curves).flat()[0]).map(link => [link, timeAt(link)])];
}

function linesOf() { // [{name, points: [[x, y, isLater]]}], name of x
  const {document: {curves: of, losses}, arms} = run;
  if (curves.figure === "perplexity") {
    const isSeconds = !["steps", "tokens", "bytes"].includes(curves.against);
    return {x: costs().find(([name]) => name === curves.against)?.[1], y: "perplexity", isSeconds, lines: Object.entries(of).filter(([, points]) => points.length).map(([name, points]) => ({name, points: points.map(point => [costOf(point, curves.against), point.perplexity, later(name, point.phase)])}))};
  }
  if (curves.figure === "losses") {
    const arm = arms[MODULAR], lines = [];
    for (let path = 0; path < Math.min(arm.num_paths, MOST_LINES); path++) {
      const {phases} = pathAt(MODULAR, path, run.time), known = losses?.[path] && unpack(losses[path]);
      const points = known ? Array.from(known, (loss, i) => [i + 1, loss, i >= arm.steps[phases]]) : column(arm.losses, arm.num_paths, path, arm.phases).map((loss, phase) => [arm.steps[phase + 1], loss, phase >= phases]);
      lines.push({name: `path ${path}`, points: points.filter(([, loss]) => Number.isFinite(loss))});
    }
    return {x: "steps of the path", y: "training loss, nats", lines};
  }
  if (curves.figure === "norms") {
    const arm = arms[MODULAR], lines = [];
    for (let path = 0; path < Math.min(arm.num_paths, MOST_LINES); path++) {
      const {phases} = pathAt(MODULAR, path, run.time);
      const points = column(arm.largest_norms, arm.num_paths, path, arm.phases).map((norm, phase) => [arm.steps[phase + 1], norm, phase >= phases]);
      lines.push({name: `path ${path}`, points: points.filter(([, norm]) => Number.isFinite(norm))});
    }
    return {x: "steps of the path", y: "largest gradient norm of a phase, before clipping", lines};
  }
  const sums = new Float64Array(BINS), width = run.end / BINS || 1;
  for (const arm of Object.values(arms)) for (let i = 0; i < arm.train_times.length; i++) if (Number.isFinite(arm.train_times[i])) {
    const end = arm.train_times[i], begin = Math.max(0, end - (arm.seconds[i] || 0)), rate = arm.tokens[i] / Math.max(end - begin, 1e-6);
    if (end - begin < 1e-6) continue;
    for (let bin = Math.floor(begin / width); bin < BINS && bin * width < end; bin++) sums[bin] += rate * (Math.min(end, (bin + 1) * width) - Math.max(begin, bin * width));
  }
  return {x: "time", y: "tokens/s of all workers, recorded ones", isTime: true, lines: [{name: "all arms", points: Array.from(sums, (sum, bin) => [(bin + .5) * width, sum / width, bin * width > run.time])}]};
}

function later(name, phase) { return (run.evaluated[`${name} ${phase}`] ?? 0) > run.time; }

function drawCurves() {
  chosen(at("figures"), FIGURES, curves.figure, name => { curves.figure = name; curves.hidden.clear(); drawCurves(); }, "tab");
  at("against").hidden = curves.figure !== "perplexity";
  chosen(at("against"), costs(), curves.against, name => { curves.against = name; drawCurves(); });
  const {x: nameX, y: nameY, lines, isTime, isSeconds = isTime} = linesOf(), {context, width, height} = canvasIn(at("plot"), Math.min(340, Math.max(220, at("plot").clientWidth * .42)));
  const visible = lines.filter(({name}) => !curves.hidden.has(name)), all = visible.flatMap(({points}) => points);
  const isNamed = width >= NAMED_FROM && lines.length <= MOST_NAMED, room = isNamed ? Math.max(0, ...visible.map(({name}) => context.measureText(name).width)) + 8 : 0;
  const left = 56, bottom = height - 34, right = width - 14 - room, top = 16;
  fill(at("lines"), ...lines.map(({name}, i) => make("button", {
    type: "button", "aria-pressed": String(!curves.hidden.has(name)), onclick: () => { curves.hidden.has(name) ? curves.hidden.delete(name) : curves.hidden.add(name); drawCurves(); },
  }, make("i", {style: `background:${series(i)}`}), name)));
  context.fillStyle = colour("--soft");
  if (!all.length) {
    context.fillText(curves.figure === "perplexity" ? "No release has been evaluated yet." : "Nothing has been recorded yet.", left, height / 2);
    curves.plotted = null;
  } else {
    const values = all.map(([, y]) => y), lowX = isTime ? 0 : Math.min(...all.map(([x]) => x)), highX = isTime ? run.end : Math.max(...all.map(([x]) => x));
    let lowY = Math.min(...values), highY = Math.max(...values);
    if (curves.figure === "speed") lowY = 0;
    const margin = (highY - lowY || Math.abs(highY) || 1) * .06;
    highY += margin; if (lowY !== 0) lowY -= margin;
    const x = value => left + (value - lowX) / (highX - lowX || 1) * (right - left), y = value => bottom - (value - lowY) / (highY - lowY || 1) * (bottom - top);
    for (const tick of niceTicks(lowY, highY, 5)) {
      context.globalAlpha = .2; context.fillRect(left, y(tick), right - left, 1); context.globalAlpha = 1;
      context.textAlign = "right"; context.fillText(short(tick), left - 6, y(tick) + 4);
    }
    context.textAlign = "center";
    for (const tick of isSeconds ? timeTicks(lowX, highX, width / 130) : niceTicks(lowX, highX, width / 110)) context.fillText(isSeconds ? tickTime(tick) : short(tick), Math.min(width - 22, x(tick)), bottom + 15);
    context.fillText(nameX, (left + right) / 2, height - 3);
    context.textAlign = "left"; context.fillText(nameY, left, 11);
    const ends = [];
    lines.forEach(({name, points}, i) => {
      if (curves.hidden.has(name) || !points.length) return;
      const ordered = [...points].sort((a, b) => a[0] - b[0]);
      context.strokeStyle = context.fillStyle = series(i);
      context.lineWidth = lines.length > 12 ? 1 : 2;
      for (const isLater of [true, false]) {
        context.globalAlpha = isLater ? .18 : 1;
        context.beginPath();
        ordered.forEach(([px, py, after], j) => { if (isLater || !after) j ? context.lineTo(x(px), y(py)) : context.moveTo(x(px), y(py)); });
        context.stroke();
      }
      if (ordered.length < 40) for (const [px, py, after] of ordered) { context.globalAlpha = after ? .25 : 1; context.beginPath(); context.arc(x(px), y(py), 3, 0, 7); context.fill(); }
      context.globalAlpha = 1;
      ends.push({name, ink: series(i), x: x(ordered.at(-1)[0]), y: y(ordered.at(-1)[1])});
    });
    if (isNamed) nameEnds(context, ends, top, bottom);
    curves.plotted = {lines: visible, x, y, isSeconds, nameX};
  }
  at("plot").setAttribute("aria-label", `${nameY} against ${nameX}: ${visible.map(({name, points}) => `${name} ${short(points.filter(([, , after]) => !after).at(-1)?.[1])}`).join(", ")}`);
  drawRows();
}

function nameEnds(context, ends, top, bottom) { // Names each line at its end. Names that would overlap move apart.
  const lineHeight = 14;
  ends.sort((a, b) => a.y - b.y);
  let free = top;
  for (const end of ends) { end.place = Math.max(free, end.y); free = end.place + lineHeight; }
  free = bottom;
  for (const end of ends.reverse()) { end.place = Math.min(free, end.place); free = end.place - lineHeight; }
  for (const {name, ink, x, place} of ends) { context.fillStyle = ink; context.fillText(name, x + 8, place + 4); }
}

function drawRows() {
  const {report, curves: of} = run.document;
  drawTable(at("rows"), report?.rows ?? Object.entries(of).filter(([, points]) => points.length).map(([name, points]) => ({name, perplexity: points.at(-1)?.perplexity, bits_per_byte: points.at(-1)?.bits_per_byte, steps: points.at(-1)?.steps, tokens: points.at(-1)?.tokens, bytes_per_machine: points.at(-1)?.bytes, machine_seconds: points.at(-1)?.seconds, link_seconds: points.at(-1)?.link_seconds})));
}

function drawTable(table, rows, differences = []) {
  const columns = [["row", row => row.name], ["perplexity", row => fixed(row.perplexity, 2)], ...differences, ["bits per byte", row => fixed(row.bits_per_byte, 3)], ["steps", row => row.steps?.toLocaleString("en")], ["tokens", row => short(row.tokens)], ["bytes per machine", row => short(row.bytes_per_machine)], ["machine time", row => duration(row.machine_seconds)], ...linksOf(rows[0]).map(link => [timeAt(link), row => duration(row.link_seconds[link])])];
  const best = Math.min(...rows.map(({perplexity}) => perplexity));
  fill(table, make("tr", {}, ...columns.map(([name], i) => make("th", {textContent: name, scope: "col", className: i ? "number" : ""}))), ...rows.map(row => make("tr", {className: row.perplexity === best && rows.length > 1 ? "hot" : "", data: {row: row.name}}, ...columns.map(([, value], i) => make("td", {className: i ? "number" : "", textContent: value(row)})))));
  table.hidden = !rows.length;
}

function curvesTip(event) {
  if (!curves.plotted) return;
  const box = at("plot").getBoundingClientRect(), px = event.clientX - box.x, py = event.clientY - box.y;
  let best = null, distance = 40;
  for (const {name, points} of curves.plotted.lines) for (const [x, y] of points) {
    const away = Math.hypot(curves.plotted.x(x) - px, curves.plotted.y(y) - py);
    if (away < distance) { distance = away; best = [name, x, y]; }
  }
  tip(event, best ? `${best[0]}\n${curves.plotted.isSeconds ? duration(best[1]) : `${Math.round(best[1]).toLocaleString("en")} ${curves.plotted.nameX}`}: ${best[2].toPrecision(5)}` : "");
}

function listenToCurves() {
  at("plot").addEventListener("mousemove", curvesTip);
  at("plot").addEventListener("mouseleave", event => tip(event, ""));
}
