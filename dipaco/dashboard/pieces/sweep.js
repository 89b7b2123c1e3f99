// A sweep: its runs, each with a page of its own, and the table of those that are finished.

function showSweep({sweep, runs, missing, rows, reference}) {
  for (const each of runs) each.title = `${each.name.replace(`${sweep} `, "")}, seed ${each.seed}`;
  const begun = new Set(runs.map(({title}) => title)), waiting = missing.filter(title => !begun.has(title));
  const over = runs.filter(({is_finished}) => is_finished).length;
  at("sweep").hidden = false;
  at("name").textContent = sweep;
  document.title = `${sweep} · dipaco dashboard`;
  at("headline").textContent = runs.length ? `${over} of ${runs.length + waiting.length} runs are finished` : "No run has begun. Runs begin when their base model is trained.";
  const columns = [
    ["run", ({title, row, seed}) => row && run.isLive ? make("a", {href: `rows/${encodeURIComponent(row)}/${seed}/`, textContent: title}) : title],
    ["perplexity", each => fixed(each.perplexity ?? NaN, 2)],
    ["steps", each => each.steps === undefined ? "" : `${percent(each.steps / Math.max(1, each.total_steps))} of ${each.total_steps.toLocaleString("en")}`],
    ["one worker's time left", each => each.is_finished ? "" : duration(each.work_left_seconds ?? NaN)],
    ["state", each => each.state],
  ];
  const lines = [...runs, ...waiting.map(title => ({title, state: "not begun"}))];
  fill(at("runs"), make("tr", {}, ...columns.map(([name]) => make("th", {textContent: name, scope: "col"}))), ...lines.map(each => make("tr", {data: {key: each.title}}, ...columns.map(([, value]) => make("td", {}, value(each))))));
  const spread = row => row.difference === null ? "" : `${row.difference > 0 ? "+" : ""}${fixed(row.difference, 2)}${row.spread === null ? "" : ` ± ${fixed(row.spread, 2)}`}`;
  drawTable(at("results"), rows.filter(({variant}) => !variant), [[`to ${reference}`, spread]]);
}
