// Drawing helpers of the whole page.

function make(tag, properties = {}, ...children) { // Makes an element. Texts are never read as HTML.
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

// Redrawing keeps elements, so that a press, the focus or a selection survives. An element is matched
// by its `data-key`, or else by its place among elements of its kind without a key.
function fill(holder, ...children) {
  const fresh = children.filter(child => child !== null && child !== undefined).map(child => child instanceof Node ? child : new Text(child));
  const there = [...holder.childNodes], keys = keysOf(there), known = new Map(there.map((node, i) => [keys[i], node]));
  const wanted = keysOf(fresh).map((key, i) => {
    const old = known.get(key);
    known.delete(key);
    if (old) become(old, fresh[i]);
    return old ?? fresh[i];
  });
  const kept = new Set(wanted), held = wanted.find(node => node.contains(document.activeElement));
  for (const node of there) if (!kept.has(node)) node.remove();
  wanted.forEach((node, i) => {
    if (node === held) while (holder.childNodes[i] !== node) holder.append(holder.childNodes[i]); // Moving a node would lose the focus.
    else if (holder.childNodes[i] !== node) holder.insertBefore(node, holder.childNodes[i] ?? null);
  });
}

function keysOf(nodes) {
  const counts = {};
  return nodes.map(({nodeName, dataset}) => `${nodeName} ${dataset?.key ?? `at ${counts[nodeName] = (counts[nodeName] ?? 0) + 1}`}`);
}

function become(old, fresh) { // Redrawn elements have no handler but `onclick`.
  if (old instanceof Text) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  if (old.onclick !== fresh.onclick) old.onclick = fresh.onclick;
  fill(old, ...fresh.childNodes);
}

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SERIES = 8;
const series = i => colour(`--c${i % SERIES}`);

function short(number) {
  if (!Number.isFinite(number)) return "–";
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (Math.abs(number) >= size) return (number / size).toPrecision(3) + unit;
  return Number.isInteger(number) ? String(number) : number.toPrecision(3);
}

const fixed = (number, digits = 3) => Number.isFinite(number) ? number.toFixed(digits) : "–";
const percent = share => `${Math.round(100 * share)} %`;

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes % 1440 / 60)} h`;
}

const tickTime = seconds => seconds ? duration(seconds).replace(/ 00 (s|min)$/, "").replace(/\.0 s$/, " s") : "0";

function clockTime(seconds) { // the time on the clock of the run's machine or server
  if (run.document.origin === null) return "";
  return new Date((run.document.origin + seconds) * 1000).toLocaleString([], {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit"});
}

function canvasIn(holder, height) { // Makes a sharp canvas of the holder's width. Returns its context and size.
  let canvas = holder.querySelector("canvas");
  if (!canvas) holder.prepend(canvas = make("canvas"));
  const ratio = Math.min(2, devicePixelRatio || 1), width = Math.max(80, holder.clientWidth);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return {canvas, context, width, height};
}

function niceTicks(low, high, most) {
  const span = high - low || 1, rough = span / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(times => times * power).find(each => each >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  return ticks;
}

function timeTicks(low, high, most) {
  const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
  const step = steps.find(each => (high - low) / each <= most) ?? (high - low) / most, ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

function tip(event, text) {
  const box = at("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

function spark(values, mark, low, high) { // a small line over phases, with one of them marked
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), width = 300, height = 54;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  svg.setAttribute("aria-hidden", "true");
  const known = values.filter(Number.isFinite);
  if (known.length) {
    low ??= Math.min(...known); high ??= Math.max(...known);
    const x = i => values.length < 2 ? width / 2 : 3 + i * (width - 6) / (values.length - 1), y = value => height - 4 - (value - low) / (high - low || 1) * (height - 8);
    const line = document.createElementNS(space, "polyline");
    line.setAttribute("points", values.map((value, i) => Number.isFinite(value) ? `${x(i)},${y(value)}` : "").filter(Boolean).join(" "));
    line.setAttribute("style", `fill:none;stroke:${colour("--cool")};stroke-width:2;vector-effect:non-scaling-stroke`);
    svg.append(line);
    if (mark >= 0 && mark < values.length) {
      const rule = document.createElementNS(space, "path");
      rule.setAttribute("d", `M${x(mark)} 0V${height}`);
      rule.setAttribute("style", `stroke:${colour("--hot")};stroke-width:2;vector-effect:non-scaling-stroke`);
      svg.append(rule);
    }
  }
  return svg;
}

function facts(pairs) {
  const list = make("dl", {className: "facts"});
  for (const [name, value] of pairs) list.append(make("dt", {textContent: name}), make("dd", {}, value));
  return list;
}

function figure(value, name) { return make("div", {}, make("b", {textContent: value}), name); }

function chosen(holder, choices, current, choose, role = "radio") { // a row of buttons, exactly one of them on
  const mark = role === "tab" ? "aria-selected" : "aria-checked";
  fill(holder, ...choices.map(([name, label]) => make("button", {type: "button", role, [mark]: String(name === current), textContent: label, data: {name}, onclick: () => choose(name)})));
}
