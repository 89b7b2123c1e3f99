// The grid: levels as rows, modules as cells, paths as lines through them.

const grid = {cells: [], lines: [], chosen: null, hovered: null};

function buildGrid() {
  const arm = run.arms[MODULAR], holder = at("grid");
  grid.cells = [];
  grid.hovered = null;
  if (grid.chosen && !(grid.chosen.module < arm.modules.length || grid.chosen.path < arm.num_paths)) grid.chosen = null; // The choice belongs to an earlier run.
  const levels = arm.levels.map(level => {
    const cells = make("div", {className: "cells"});
    for (const id of level.modules) {
      const module = arm.modules.indexOf(id), short = level.modules.length === 1 ? "shared" : id.split("/").at(-1).replace(/^0+(?=\d)/, "");
      const cell = make("button", {
        type: "button", className: "cell", data: {module: id}, "aria-pressed": "false",
        onclick: () => { grid.chosen = grid.chosen?.module === module ? null : {module}; drawGrid(); },
        onmouseenter: () => lightPaths(module), onmouseleave: () => lightPaths(null), onfocus: () => lightPaths(module), onblur: () => lightPaths(null),
      }, make("b", {textContent: short}), make("i", {className: "phase"}), make("span", {className: "norm"}), make("span", {className: "cosine"}));
      grid.cells[module] = {cell, phase: cell.querySelector(".phase"), norm: cell.querySelector(".norm"), cosine: cell.querySelector(".cosine"), through: [], isSmall: level.modules.length > 8};
      cells.append(cell);
    }
    const size = level.modules.length > 24 ? "level crowd" : level.modules.length > 8 ? "level many" : "level";
    const parts = make("small", {textContent: `${level.parts.length} part${level.parts.length === 1 ? "" : "s"} · ${level.modules.length} module${level.modules.length === 1 ? "" : "s"}`, title: level.parts.join(", ")});
    return make("div", {className: size}, make("div", {className: "name"}, level.name, parts), cells);
  });
  arm.paths.forEach((modules, path) => modules.forEach(module => grid.cells[module]?.through.push(path)));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  grid.lines = arm.paths.map(() => svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline")));
  holder.classList.toggle("many", arm.num_paths > 32);
  holder.replaceChildren(...levels, svg);
  placeLines();
}

function placeLines() { // The cells must have their places already.
  const frame = at("grid").getBoundingClientRect(), middles = grid.cells.map(({cell}) => {
    const box = cell.getBoundingClientRect();
    return [box.x + box.width / 2 - frame.x, box.y - frame.y, box.y + box.height - frame.y];
  });
  run.arms[MODULAR].paths.forEach((modules, path) => {
    const known = modules.filter(module => middles[module]);
    grid.lines[path].setAttribute("points", known.map(module => `${middles[module][0]},${middles[module][1]} ${middles[module][0]},${middles[module][2]}`).join(" "));
  });
}

function lightPaths(module) {
  grid.hovered = module;
  const chosen = module ?? grid.chosen?.module, paths = new Set(chosen != null ? grid.cells[chosen].through : grid.chosen?.path != null ? [grid.chosen.path] : []);
  const modules = new Set([...paths].flatMap(path => run.arms[MODULAR].paths[path]));
  at("grid").classList.toggle("some", paths.size > 0);
  grid.lines.forEach((line, path) => line.classList.toggle("on", paths.has(path)));
  grid.cells.forEach(({cell}, at) => cell.classList.toggle("on", paths.size > 0 && modules.has(at)));
}

function drawGrid() {
  const arm = run.arms[MODULAR], busyPaths = new Map(), busyModules = new Map();
  for (const [kind, name, subject, worker] of busyAt(run.time)) {
    if (name !== MODULAR) continue;
    if (kind === "outer") busyModules.set(subject, worker);
    else if (["train", "score", "label", "check"].includes(kind)) busyPaths.set(Number(subject), `${kind} by ${worker}`);
  }
  let lowest = Infinity, highest = 0;
  grid.cells.forEach(({cell, phase, norm, cosine, through, isSmall}, module) => {
    const is = moduleAt(module, run.time), id = arm.modules[module];
    lowest = Math.min(lowest, is.phase); highest = Math.max(highest, is.phase);
    const isBusy = busyModules.has(id) || through.some(path => busyPaths.has(path));
    phase.textContent = isSmall ? is.phase : `phase ${is.phase}`;
    norm.textContent = isSmall ? fixed(is.norm, 2) : `‖g‖ ${fixed(is.norm)}`;
    cosine.textContent = `cos ${fixed(is.cosine, 2)}`;
    cosine.hidden = through.length < 2 || isSmall; // The colour shows the cosine.
    cell.classList.toggle("busy", isBusy);
    const share = Number.isFinite(is.cosine) ? Math.min(1, Math.abs(is.cosine)) : 0;
    cell.style.background = share ? `color-mix(in srgb, var(${is.cosine < 0 ? "--part" : "--agree"}) ${Math.round(8 + 52 * share)}%, var(--cell))` : "";
    Object.assign(cell.dataset, {phase: is.phase, norm: fixed(is.norm), cosine: fixed(is.cosine, 3)});
    cell.setAttribute("aria-label", `${id}, phase ${is.phase}, norm of the last outer gradient ${fixed(is.norm)}, mean cosine of its paths ${fixed(is.cosine, 2)}${isBusy ? ", being trained" : ""}`);
    cell.setAttribute("aria-pressed", String(grid.chosen?.module === module));
    cell.title = `${id}: phase ${is.phase}, ‖g‖ ${fixed(is.norm)}, cosine ${fixed(is.cosine, 2)}`;
  });
  at("grid-when").textContent = `phase ${lowest === highest ? lowest : `${lowest} to ${highest}`} of ${arm.phases}, ${arm.num_paths} path${arm.num_paths === 1 ? "" : "s"}`;
  lightPaths(grid.hovered);
  const detail = at("detail");
  if (grid.chosen?.module != null) fill(detail, ...moduleDetail(grid.chosen.module));
  else if (grid.chosen?.path != null) fill(detail, ...pathDetail(grid.chosen.path, busyPaths));
  else fill(detail, ...overview(busyPaths));
}

function column(values, width, at, count) { return Array.from({length: count}, (_, phase) => values[phase * width + at]); }

function choosePath(path) { grid.chosen = {path}; drawGrid(); }

function pathButton(path) { return make("button", {type: "button", textContent: `path ${path}`, onclick: () => choosePath(path)}); }

function moduleDetail(module) {
  const arm = run.arms[MODULAR], is = moduleAt(module, run.time), id = arm.modules[module], {through} = grid.cells[module], width = arm.modules.length;
  const level = arm.levels.find(each => each.modules.includes(id)), children = [
    make("h3", {textContent: id}),
    facts([["parts", level.parts.join(", ")], ["phase", `${is.phase} of ${arm.phases}`], ["norm of the last outer gradient", fixed(is.norm)], ["mean cosine of its paths", fixed(is.cosine)]]),
    make("div", {className: "soft", textContent: "norm over phases"}), spark(column(arm.norms, width, module, arm.phases), is.phase - 1),
  ];
  if (through.length > 1) children.push(make("div", {className: "soft", textContent: "mean cosine over phases"}), spark(column(arm.cosines, width, module, arm.phases), is.phase - 1, -0.2, 1));
  const most = arm.path_norms.shape[2], list = make("ul", {className: "bars", "aria-label": "Norm of each path's outer gradient"});
  const norms = through.map((path, i) => [path, most && is.phase ? arm.path_norms[((is.phase - 1) * width + module) * most + i] : NaN]);
  const largest = Math.max(...norms.map(([, value]) => Number.isFinite(value) ? value : 0), 1e-9);
  for (const [path, value] of norms) list.append(make("li", {}, pathButton(path), make("i", {style: `width:${Number.isFinite(value) ? 100 * value / largest : 0}%`}), make("span", {textContent: fixed(value)})));
  children.push(make("div", {className: "soft", textContent: "paths through it, norm of each one's outer gradient"}), list);
  return children;
}

function pathDetail(path, busy) {
  const arm = run.arms[MODULAR], is = pathAt(MODULAR, path, run.time), phase = routingAt(run.time), stage = phase === null ? null : stageOf(phase);
  const domains = Object.entries(stage?.domains?.[path] ?? {}).sort((a, b) => b[1] - a[1]), total = domains.reduce((sum, [, n]) => sum + n, 0);
  const list = make("ul", {className: "bars", "aria-label": "Its documents by domain"});
  for (const [name, count] of domains.slice(0, 16)) list.append(make("li", {}, make("span", {textContent: name, title: name}), make("i", {style: `width:${100 * count / domains[0][1]}%`}), make("span", {textContent: count.toLocaleString("en")})));
  return [
    make("h3", {textContent: `path ${path}`}),
    facts([["modules", arm.paths[path].map(module => arm.modules[module]).join(" + ")], ["phases trained", `${is.phases} of ${arm.phases}`], ["loss", fixed(is.loss)], ["tokens", short(tokensOf(path, is.phases))], ["documents", total.toLocaleString("en")], ["now", busy.get(path) ?? "waits"]]),
    make("div", {className: "soft", textContent: "loss at the end of each phase"}), spark(column(arm.losses, arm.num_paths, path, arm.phases), is.phases - 1),
    make("div", {className: "soft", textContent: "its documents"}), list,
  ];
}

function overview(busy) {
  const arm = run.arms[MODULAR], paths = arm.paths.map((_, path) => ({path, ...pathAt(MODULAR, path, run.time)}));
  const cosines = grid.cells.map(({through}, module) => ({id: arm.modules[module], module, cosine: through.length > 1 ? moduleAt(module, run.time).cosine : NaN})).filter(({cosine}) => Number.isFinite(cosine)).sort((a, b) => a.cosine - b.cosine);
  const children = [];
  if (cosines.length) {
    const list = make("ul", {className: "bars", id: "disagree"});
    for (const {id, module, cosine} of cosines.slice(0, 4)) list.append(make("li", {data: {key: id}}, make("button", {type: "button", textContent: id, onclick: () => { grid.chosen = {module}; drawGrid(); }}), make("i", {style: `width:${100 * Math.max(0, cosine)}%`}), make("span", {textContent: fixed(cosine)})));
    children.push(make("h3", {textContent: "Paths agree least in"}), list);
  }
  const list = make("ul", {className: "bars", id: "paths"}), highest = Math.max(...paths.map(({loss}) => Number.isFinite(loss) ? loss : 0), 1e-9);
  for (const {path, phases, loss} of paths.slice(0, 300)) list.append(make("li", {title: busy.get(path) ?? ""}, pathButton(path), make("i", {style: `width:${Number.isFinite(loss) ? 100 * loss / highest : 0}%${busy.has(path) ? ";background:var(--hot)" : ""}`}), make("span", {textContent: `${fixed(loss, 2)} · ${phases}`})));
  children.push(make("h3", {textContent: "Paths: loss · phases trained"}), list, make("p", {className: "soft", textContent: "A module or a path opens here."}));
  return children;
}
