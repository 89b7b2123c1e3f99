// Draws modules as cells and paths as lines through them, and bars for domains and scores.

const at = id => document.getElementById(id);
const MOST_SCORES = 8, MOST_DOMAINS = 5, MOST_LARGE_CELLS = 8;

export function piece(name, kind, text = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

export function drawLevels(levels) {
  at("grid").replaceChildren(...levels.map(drawLevel), document.createElementNS("http://www.w3.org/2000/svg", "svg"));
}

function drawLevel(level) {
  const row = piece("div", level.modules.length > MOST_LARGE_CELLS ? "level many" : "level"), name = piece("div", "name", level.name);
  const parts = piece("small", "", level.parts.length + (level.parts.length === 1 ? " part" : " parts"));
  parts.title = level.parts.join(", ");
  name.append(parts);
  const cells = piece("div", "cells");
  for (const module of level.modules) {
    const cell = piece("div", "cell", level.modules.length === 1 ? "shared" : module.split("/")[1].replace(/^0+(?=\d)/, ""));
    cell.title = cell.dataset.module = module;
    cells.append(cell);
  }
  row.append(name, cells);
  return row;
}

// Marks the modules of the first and of the second path. An empty list marks none.
export function light([first = [], second = []]) {
  for (const cell of document.querySelectorAll(".cell")) {
    cell.classList.toggle("on", first.includes(cell.dataset.module));
    cell.classList.toggle("second", second.includes(cell.dataset.module));
  }
  drawLine();
}

export function drawLine() {
  const svg = document.querySelector("#grid svg"), frame = at("grid").getBoundingClientRect();
  if (!svg) return;
  svg.replaceChildren(...["second", "on"].map(kind => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("class", kind);
    line.setAttribute("points", [...document.querySelectorAll(".cell." + kind)].map(cell => {
      const box = cell.getBoundingClientRect();
      return `${box.x + box.width / 2 - frame.x},${box.y + box.height / 2 - frame.y}`;
    }).join(" "));
    return line;
  }));
}

function bar(share) {
  const made = piece("span", "bar"), fill = piece("i", "");
  fill.style.width = `${100 * share}%`;
  made.append(fill);
  return made;
}

function row(kind, name, share, value) {
  const made = piece("li", kind);
  made.append(piece("span", "", name), bar(share), piece("span", "value", value));
  made.firstChild.title = name; // A long name is cut off.
  return made;
}

// Shows the training documents of each path. null = no path of this model.
export function showPaths(paths) {
  const kinds = ["path", "path second"], seen = new Set();
  at("paths").replaceChildren(...paths.flatMap((path, number) => {
    if (path === null || seen.has(path.path)) return [];
    seen.add(path.path);
    const told = piece("div", kinds[number]);
    told.append(piece("b", "", `path ${path.path}`), ` = ${path.modules.join(" + ")}`);
    const domains = Object.entries(path.domains ?? {});
    if (path.documents !== null) {
      told.append(piece("div", "trained", `trained on ${path.documents.toLocaleString("en")} documents (${(100 * path.share).toFixed(0)} % of all)${domains.length ? `, of ${domains.length} domains` : ""}`));
      const list = piece("ul", "domains");
      list.append(...domains.slice(0, MOST_DOMAINS).map(([name, share]) => row("", name, share, `${(100 * share).toFixed(0)} %`)));
      told.append(list);
      if (domains.length > MOST_DOMAINS) told.append(piece("small", "", `and ${domains.length - MOST_DOMAINS} more`));
    }
    return [told];
  }));
}

export function showScores(route) {
  const scores = (route.scores ?? []).slice(0, MOST_SCORES), best = scores[0]?.score ?? 0, worst = route.scores?.at(-1)?.score ?? 0;
  at("scores").replaceChildren(...scores.map(({path, score}) => {
    const share = best === worst ? 1 : (score - worst) / (best - worst);
    return row(path === route.path ? "on" : "", `path ${path}`, 0.04 + 0.96 * share, score.toFixed(1));
  }));
}
