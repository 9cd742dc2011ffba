"use strict";
// The page of a run. What a model or a program wrote becomes a text node, with control characters as signs: never markup.

const CONTINUES = [null, "root", "append"];
const ROWS = 1000; // drawn at once
const CUT = 6000; // characters of a text, and of the tokens that were not sampled
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const COLUMNS = [ // name, title, is it a number, its text
  ["step", "step", true],
  ["task", "task"],
  ["harness", "harness"],
  ["sample", "sample", true],
  ["state", "state"],
  ["reward", "reward", true],
  ["calls", "calls", true],
  ["completion_tokens", "sampled", true],
  ["prompt_tokens", "prompt", true],
  ["samples", "samples", true],
  ["seconds", "seconds", true, (value) => value.toFixed(1)],
  ["error_class", "fault"],
];

const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);
const whole = (value) => (value && value.$ !== undefined ? read(`s${value.$}`) : value);
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
const short = (number) => Number(number.toPrecision(3)).toString();
const link = (...parts) => `#${parts.map(encodeURIComponent).join("/")}`;

function visible(text) {
  return String(text).replace(CONTROL, (sign) => {
    const code = sign.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "␡" : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, visible(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === "") continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

function rewardOf(value) {
  if (value === null) return make("span", { class: "reward" }, "–");
  const bar = make("span", { class: "bar" });
  bar.style.setProperty("--share", Math.min(Math.max(value, 0), 1));
  return make("span", { class: "reward" }, value.toFixed(2), bar);
}

const facts = (...texts) => make("p", { class: "facts" }, texts.filter(Boolean).flatMap((one, at) => (at ? [" · ", one] : [one])));
const time = (text) => text && `${text.slice(0, 16).replace("T", " ")} UTC`;

// The list

const run = read("run");
const all = read("list").map((row, n) => ({ ...row, n, words: Object.values(row).join("\n").toLowerCase() }));
let order = "task";
let descending = false;
let cursor = 0;
let drawn = ROWS;
let shown = all;
const columns = COLUMNS.filter(([name]) => all.some((row) => row[name] !== null));

function drawHead() {
  const names = ["harness", "version", "rollouts", "done", "failed", "error", "reward"];
  const head = make("tr", {}, names.map((name, at) => make("th", { class: at > 1 && at < 6 ? "right" : null }, name)));
  const rows = run.by_harness.map((row) =>
    make("tr", {}, names.map((name, at) =>
      make("td", { class: at > 1 && at < 6 ? "right" : null },
        name === "reward" ? rewardOf(row.reward) : row[name] ?? ""))));
  const graded = run.by_harness.reduce((sum, row) => sum + row.graded, 0);
  byId("head").append(
    make("div", {},
      make("div", { class: "brand" }, "OpenForge"),
      make("h1", {}, run.run_id),
      facts(make("span", { class: `state ${run.state}` }, run.state), run.policy && `policy ${run.policy}`,
        run.harnesses?.join(" "), time(run.created_at)),
      facts(count(run.total, "rollout"), graded < run.total && `${graded} with a reward`,
        `${run.by_harness.reduce((sum, row) => sum + row.sampled, 0).toLocaleString("en")} tokens sampled`, run.reason,
        !run.ended_at && `as it was at ${time(run.written_at)}`)),
    make("table", {}, make("thead", {}, head), make("tbody", {}, rows)));
  if (all.length < run.total) {
    byId("left-out").hidden = false;
    byId("left-out").append(
      `This page holds ${all.length.toLocaleString("en")} of ${run.total.toLocaleString("en")} rollouts: what went wrong and the lowest rewards. `,
      "All of them: ", make("code", {}, `${run.again} --limit 0`));
  }
}

function drawTools() {
  for (const name of ["state", "harness", "task"]) {
    const values = [...new Set(all.map((row) => row[name]))].sort();
    byId(`by-${name}`).append(make("option", { value: "" }, `any ${name}`),
      ...values.map((value) => make("option", { value }, value)));
  }
  byId("tools").addEventListener("input", () => { cursor = 0; drawn = ROWS; choose(); });
  byId("tools").addEventListener("submit", (event) => { event.preventDefault(); byId("filter").blur(); });
  byId("more").addEventListener("click", () => { drawn += ROWS; drawRows(); });
}

function rank(a, b) {
  const [x, y] = [a[order], b[order]];
  if (x === y) return a.task < b.task ? -1 : a.task > b.task ? 1 : a.harness < b.harness ? -1 : a.harness > b.harness ? 1 : a.sample - b.sample;
  if (x === null || y === null) return x === null ? 1 : -1; // what has none comes last, either way
  return (x < y ? -1 : 1) * (descending ? -1 : 1);
}

function choose() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = ["state", "harness", "task"].map((name) => [name, byId(`by-${name}`).value]).filter(([, value]) => value);
  shown = all.filter((row) =>
    (!byId("faults").checked || row.fault) &&
    wanted.every(([name, value]) => row[name] === value) &&
    words.every((word) => row.words.includes(word))).sort(rank);
  drawRows();
}

function drawRows() {
  const heads = columns.map(([name, title, isNumber]) =>
    make("th", { class: isNumber ? "right" : null, "aria-sort": name === order && (descending ? "descending" : "ascending") },
      make("button", { type: "button", onclick: () => { descending = name === order && !descending; order = name; choose(); } }, title)));
  byId("rollouts").tHead.replaceChildren(make("tr", {}, heads));
  const rows = shown.slice(0, drawn).map((row, at) =>
    make("tr", { class: at === cursor ? "here" : null, onclick: (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); cursor = at; visit(link(row.rollout_id)); } } },
      columns.map(([name, , isNumber, text]) => make("td", { class: isNumber ? "right" : name === "error_class" ? "fault" : null }, cell(row, name, text)))));
  byId("rollouts").tBodies[0].replaceChildren(...rows);
  byId("count").textContent = shown.length === all.length ? count(all.length, "rollout") : `${shown.length} of ${count(all.length, "rollout")}`;
  byId("more").hidden = shown.length <= drawn;
  byId("more").textContent = `${count(shown.length - drawn, "more row")}: show the next ${ROWS}`;
}

function cell(row, name, text) {
  const value = row[name];
  if (name === "task") return make("a", { href: link(row.rollout_id) }, value);
  if (name === "state") return make("span", { class: value }, value);
  if (name === "reward") return rewardOf(value);
  if (name === "error_class") return [value, row.detail].filter(Boolean).join(": ");
  if (value === null) return "";
  return text ? text(value) : value.toLocaleString("en");
}

function moveCursor(by) {
  const rows = byId("rollouts").tBodies[0].rows;
  rows[cursor]?.classList.remove("here");
  cursor = Math.min(Math.max(cursor + by, 0), rows.length - 1);
  rows[cursor]?.classList.add("here");
  rows[cursor]?.scrollIntoView({ block: "nearest" });
}

// A rollout

let open = null; // what is read of it: {row, turns, …}
let place = { turn: 0, tab: "messages" };

function openRollout(row) {
  const found = read(`r${row.n}`);
  const messages = Map.groupBy(found.messages, (message) => message.call_id);
  const turns = found.calls.map((call) => ({ call, messages: messages.get(call.call_id) || [] }));
  return { ...found, row, turns };
}

function drawRollout() {
  const { rollout, turns, row } = open;
  const turn = turns[place.turn];
  const tab = (name) => make("a", { href: link(row.rollout_id, place.turn + 1, name), "aria-current": place.tab === name && "page" }, name);
  byId("rollout-view").replaceChildren(
    make("a", { class: "back", href: "#" }, `← ${run.run_id}`),
    make("h1", {}, row.rollout_id),
    facts(make("span", { class: `state ${rollout.state}` }, rollout.state),
      rollout.reward === null ? "no reward" : `reward ${short(rollout.reward)}`,
      `${rollout.harness} ${rollout.harness_version || ""}`, count(rollout.calls, "call"),
      `${(rollout.prompt_tokens || 0).toLocaleString("en")} → ${(rollout.completion_tokens || 0).toLocaleString("en")} tokens`,
      rollout.seconds !== null && `${rollout.seconds.toFixed(1)} s`,
      rollout.attempt > 0 && `attempt ${rollout.attempt}, counted from 0: earlier ones are not in this page`),
    rollout.error_class ? make("p", { class: "bad" }, `${rollout.error_class}: ${rollout.detail || ""}`) : "",
    make("div", { class: "split" },
      make("nav", { class: "side" }, turns.map(drawTurnLink), drawOutcome()),
      turn
        ? make("article", {},
            make("div", { class: "tabs" }, tab("messages"), tab("tokens"), make("span", { class: "right" }, `turn ${place.turn + 1} of ${turns.length}`)),
            drawCall(turn), place.tab === "tokens" ? drawTokens(turn) : turn.messages.map(drawMessage))
        : make("article", {}, "No model call was recorded.")));
  document.querySelector(".turn[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function drawTurnLink({ call, messages }, at) {
  const answer = messages.findLast((message) => message.role === "assistant");
  const asked = answer?.tool_calls?.map((one) => `→ ${one.name} ${one.arguments}`).join(" ");
  const broke = !CONTINUES.includes(call.break_reason);
  return make("a", { class: "turn", href: link(open.row.rollout_id, at + 1, place.tab), "aria-current": at === place.turn && "true" },
    make("b", {}, `${at + 1}`), " ",
    call.error_class || call.state !== "done" ? make("span", { class: "bad" }, call.error_class || call.state) : call.finish_reason || "",
    broke ? make("span", { class: "warn" }, ` break: ${call.break_reason}`) : "", call.auxiliary ? " side call" : "",
    make("small", {}, (asked || String(whole(answer?.text) || "")).slice(0, 160).replaceAll("\n", " ") || " "));
}

function drawCall({ call }) {
  const prompt = call.prompt_len ?? call.prompt_tokens;
  const added = whole(call.input_ids)?.length;
  const versions = [...new Set([call.weight_version_min, call.weight_version_max].filter(Boolean).map((one) => one.slice(0, 8)))];
  return [
    facts(call.call_id, call.dialect + (call.stream ? ", stream" : ""), prompt !== null && `${prompt.toLocaleString("en")} in the prompt`,
      added === undefined ? "no ids" : `+${added.toLocaleString("en")} added`,
      call.completion_ids ? `${call.completion_ids.length} sampled` : call.completion_tokens !== null && `${call.completion_tokens} answered`,
      call.finish_reason, call.duration_s !== null && `${call.duration_s.toFixed(1)} s`, versions.length > 0 && `weights ${versions.join(" to ")}`),
    CONTINUES.includes(call.break_reason) ? "" : make("p", { class: "warn" }, `break: ${call.break_reason}`, call.parent_call_id ? ` (after ${call.parent_call_id})` : ""),
    call.state === "done" && call.break_reason === null ? make("p", { class: "warn" }, "not read by the recorder: no token ids, never trained") : "",
    call.state === "done" ? "" : make("p", { class: "bad" }, call.error_class ? `${call.state}: ${call.error_class}: ${call.detail || ""}` : `${call.state}: no answer was recorded`),
  ];
}

function cuttable(text, attributes) {
  const body = make("pre", attributes, text.slice(0, CUT));
  if (text.length <= CUT) return body;
  const more = make("button", { class: "cut", type: "button", onclick: () => { body.textContent = visible(text); more.remove(); } },
    `show ${count(text.length - CUT, "more character")}`);
  return [body, more];
}

function drawMessage(message) {
  return make("section", { class: "message" },
    make("div", { class: `role ${message.role}` }, message.role, message.tool_call_id ? make("small", {}, message.tool_call_id) : ""),
    message.reasoning ? cuttable(whole(message.reasoning), { class: "text reasoning" }) : "",
    message.text ? cuttable(whole(message.text), { class: "text" }) : "",
    (message.images || []).map(drawImage),
    (message.tool_calls || []).map((one) => make("pre", { class: "call" }, "→ ", make("b", {}, one.name), " ", one.arguments)));
}

function drawImage({ told, url }) {
  const source = whole(url);
  return [
    make("p", { class: "image" }, source ? told : `${told} not included`),
    source ? make("img", { src: source, alt: told }) : "",
  ];
}

// Tokens

let vocabulary = null;

function drawTokens({ call }) {
  const given = whole(call.input_ids);
  const sampled = call.completion_ids;
  if (!given && !sampled) return make("p", { class: "facts" }, "This call has no token ids.");
  vocabulary ||= read("vocabulary");
  const texts = vocabulary.texts[vocabulary.of[call.recorder_id]] || {};
  const text = (id) => texts[id] ?? `<${id}>`;
  const chance = (at) => (call.logprobs?.[at] == null ? null : Math.exp(Math.min(call.logprobs[at], 0)));
  const start = (call.prompt_len ?? 0);
  const readout = make("div", { class: "readout" }, "sampled tokens are underlined; point at one");
  const tell = (at) => {
    const [p, version] = [chance(at), versionAt(call, at)];
    readout.textContent = visible([JSON.stringify(text(sampled[at])), `id ${sampled[at]}`, `position ${start + at}`,
      p === null ? "no probability" : `probability ${short(p)}`, p !== null && `logprob ${call.logprobs[at]}`,
      version && `weights ${version.slice(0, 8)}`].filter(Boolean).join(" · "));
  };
  const marked = (sampled || []).map((id, at) => {
    const p = chance(at);
    const shade = p === null ? "" : p >= 0.9 ? "p9" : p >= 0.5 ? "p5" : p >= 0.1 ? "p1" : "p0";
    return make("span", { class: `sampled ${shade}`, title: p === null ? null : short(p), onmouseover: () => tell(at), onclick: () => tell(at) },
      text(id).replaceAll("\n", "⏎\n"));
  });
  const least = (sampled || []).map((id, at) => [chance(at), text(id)]).filter(([p]) => p !== null && p < 0.9)
    .sort(([a], [b]) => a - b).slice(0, 5).map(([p, one]) => `${JSON.stringify(one)} ${short(p)}`);
  const before = (given || []).map(text).join("");
  const head = make("span", { class: "given" }, before.length > CUT ? before.slice(-CUT) : before);
  const more = before.length <= CUT ? "" : make("button", { class: "cut", type: "button",
    onclick: () => { head.textContent = visible(before); more.remove(); } }, `show ${count(before.length - CUT, "earlier character")} of the prompt's new part`);
  return [
    make("p", { class: "legend" }, make("span", { class: "sampled p9" }, "0.9 or more"), make("span", { class: "sampled p5" }, "0.5"),
      make("span", { class: "sampled p1" }, "0.1"), make("span", { class: "sampled p0" }, "less"), least.length ? ` least likely: ${least.join(", ")}` : ""),
    readout, more, make("pre", {}, head, marked),
  ];
}

function versionAt(call, at) {
  if (call.weight_version_min === call.weight_version_max) return call.weight_version_min;
  return (JSON.parse(call.versions || "[]").findLast(([offset]) => offset <= at) || [])[1]?.toString();
}

// How it ended

function drawOutcome() {
  const lines = [
    ...open.grades.map((grade) => make("p", {}, make("b", {}, `reward ${short(grade.reward)} `), details(grade.details))),
    ...open.samples.map((one) => make("p", {}, `sample ${one.is_main ? "main" : "side"}: ${count(one.tokens, "token")}, ${one.trained} trained, weight ${short(one.weight)}, ${one.reason}`)),
    ...open.refused.map((one) => make("p", { class: "warn" }, `${one.what} refused: ${one.reason} ${one.detail || ""}`)),
    ...open.egress.map((one) => make("p", { class: one.decision === "allow" ? null : "warn" },
      `${one.decision === "allow" ? "reached" : "refused to reach"} ${one.host}${one.port ? `:${one.port}` : ""} (${one.rule || "no rule"})`)),
    open.rollout.invalid_calls ? make("p", { class: "warn" }, `${count(open.rollout.invalid_calls, "tool call")} that no harness could have run`) : "",
  ];
  return [make("h2", {}, "outcome"), lines.some(Boolean) ? lines : make("p", {}, "nothing yet")];
}

function details(text) {
  const value = JSON.parse(text || "null");
  if (value === null || typeof value !== "object") return value ?? "";
  return Object.entries(value).map(([name, one]) => `${name}=${typeof one === "object" ? JSON.stringify(one) : one}`).join(" ");
}

// Going somewhere: at once, since keys come faster than the browser tells that the address has changed

function visit(address) {
  history.pushState(null, "", address || location.pathname + location.search);
  go();
}

function replace(address) {
  history.replaceState(null, "", address);
  go();
}

function go() {
  let parts;
  try { parts = location.hash.slice(1).split("/").map(decodeURIComponent); } catch { parts = [""]; }
  const row = all.find((one) => one.rollout_id === parts[0]);
  const reading = row !== undefined;
  document.body.classList.toggle("reading", reading);
  byId("list-view").hidden = reading;
  byId("rollout-view").hidden = !reading;
  document.title = `${reading ? row.rollout_id : run.run_id} · OpenForge`;
  if (!reading) {
    open = null;
    byId("missing").hidden = !parts[0];
    byId("missing").textContent = visible(`${parts[0]} is not in this page.`);
    moveCursor(0);
    return;
  }
  const another = open?.row !== row;
  if (another) open = openRollout(row);
  place = { turn: Math.min(Math.max((parseInt(parts[1], 10) || 1) - 1, 0), Math.max(open.turns.length - 1, 0)), tab: parts[2] === "tokens" ? "tokens" : "messages" };
  drawRollout();
  if (another) window.scrollTo(0, 0);
}

function step(by) {
  const next = shown[shown.findIndex((one) => one === open.row) + by];
  if (next) { cursor = shown.indexOf(next); replace(link(next.rollout_id, 1, place.tab)); }
}

const show = (turn, tab = place.tab) => replace(link(open.row.rollout_id, turn + 1, tab));
const IN_LIST = {
  j: () => moveCursor(1), ArrowDown: () => moveCursor(1), k: () => moveCursor(-1), ArrowUp: () => moveCursor(-1),
  Enter: () => { if (shown[cursor]) visit(link(shown[cursor].rollout_id)); },
  "/": () => byId("filter").focus(),
};
const IN_ROLLOUT = {
  j: () => show(Math.min(place.turn + 1, open.turns.length - 1)), k: () => show(Math.max(place.turn - 1, 0)),
  t: () => show(place.turn, place.tab === "tokens" ? "messages" : "tokens"), n: () => step(1), p: () => step(-1),
  Escape: () => visit(""),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, button, textarea, a")) {
    if (event.key === "Escape") event.target.blur();
    if (event.key === "Enter" || event.target.matches("input[type=search], select")) return;
  }
  const act = (open ? IN_ROLLOUT : IN_LIST)[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("hashchange", go);

drawHead();
drawTools();
choose();
go();
