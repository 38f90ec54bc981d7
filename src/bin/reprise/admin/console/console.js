"use strict";
// Every text of the gateway reaches the page by textContent alone: a body may hold anything.
const $ = (id) => document.getElementById(id);
const page = document.querySelector("meta[name=page]").content;
const POINTS = 60;
const SHOWN = 100000;
let token = sessionStorage.getItem("token") || "";

function make(name, text, attributes) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return element;
}
function trouble(text) { $("trouble").textContent = text; $("trouble").hidden = !text; }

async function ask(path, method, body, type) {
  const headers = { "x-reprise-page": page };
  const used = token;
  if (used) headers.authorization = "Bearer " + used;
  if (body) headers["content-type"] = type;
  const reply = await fetch(path, { method: method || "GET", headers, cache: "no-store", body });
  // The token may have come while a request without it was on its way.
  if (reply.status === 401) { if (used === token) await login(); return ask(path, method, body, type); }
  return reply;
}
async function json(path, method, body, type) {
  const reply = await ask(path, method, body, type);
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(answer.error || answer.detail || "status " + reply.status);
  return answer;
}
// Does something, and says what went wrong with it.
async function act(does) {
  try { trouble(""); await does(); } catch (error) { trouble(error.message); }
}
let asking = null;
function login() {
  asking = asking || new Promise((done) => {
    $("login").addEventListener("close", () => {
      token = $("token").value.trim(); sessionStorage.setItem("token", token); asking = null; done();
    }, { once: true });
    $("login").showModal();
  });
  return asking;
}
function sure(text) {
  $("question-text").textContent = text;
  $("question").showModal();
  return new Promise((done) => {
    const end = (answer) => () => { $("question").close(); done(answer); };
    $("question-yes").onclick = end(true); $("question-no").onclick = end(false);
    $("question").oncancel = () => done(false);
  });
}

// --- dependencies: the last minute, second by second
const history = new Map();
function quantile(counts, bounds, share) {
  const all = counts.reduce((a, b) => a + b, 0);
  let left = all * share;
  if (all) for (let i = 0; i < counts.length; i++) {
    // Evenly spread between the bounds, as Prometheus has it.
    const from = i ? bounds[i - 1] : 0, to = bounds[Math.min(i, bounds.length - 1)];
    if (left <= counts[i]) return from + (to - from) * left / counts[i];
    left -= counts[i];
  }
  return null;
}
// What came since the last second; all of it where the counts began anew.
function since(now, last) {
  if (!now || !last) return null;
  if (now.calls < last.calls) last = { calls: 0, failed: 0, counts: now.counts.map(() => 0) };
  return { calls: now.calls - last.calls, failed: now.failed - last.failed, counts: now.counts.map((count, i) => count - last.counts[i]) };
}
function remember(dependency) {
  const known = history.get(dependency.name) || { success: [], rate: [], load: [], latency: [], budget: [] };
  history.set(dependency.name, known);
  const push = (list, value) => { list.push(value); if (list.length > POINTS) list.shift(); };
  const { retries, retries_allowed: allowed } = dependency.budget;
  push(known.budget, allowed === null ? 0 : retries / Math.max(1, retries + allowed));
  const traffic = dependency.calls || dependency.attempts;
  const came = since(traffic, known.traffic), sent = since(dependency.attempts, known.attempts);
  known.traffic = traffic; known.attempts = dependency.attempts;
  if (sent) push(known.load, sent.calls);
  if (!came) return known;
  push(known.rate, came.calls);
  push(known.success, came.calls ? 1 - came.failed / came.calls : null);
  push(known.latency, quantile(came.counts, traffic.bounds, 0.99));
  return known;
}
function chart(name, values, shown, most) {
  const box = make("div", null, { class: "chart" });
  const seen = values.filter((value) => value !== null);
  box.append(make("b", seen.length ? shown(seen[seen.length - 1]) : "–"), make("span", name));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 " + POINTS + " 20"); svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", name);
  const top = most || Math.max(1e-9, ...seen);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const from = POINTS - values.length;
  line.setAttribute("points", values.map((value, i) => value === null ? "" : (from + i) + "," + (19 - 18 * Math.min(1, value / top))).join(" "));
  svg.append(line); box.append(svg);
  return box;
}
const percent = (value) => (100 * value).toFixed(value > 0.999 || value < 0.001 ? 0 : 1) + " %";
const seconds = (value) => value >= 1 ? value.toFixed(1) + " s" : value >= 0.01 ? Math.round(value * 1000) + " ms" : (value * 1000).toFixed(1) + " ms";
const moment = (text) => text.replace("T", " ").replace(/\.\d+Z$/, "Z");
const LOOKS = { closed: "good", open: "bad", recovering: "warn" };
function card(dependency) {
  const known = remember(dependency), { state, seconds_left: left, reason } = dependency.breaker;
  const look = LOOKS[state] || "warn", upstream = dependency.kind === "upstream";
  const box = make("article", null, { class: "card is-" + look });
  const title = make("h3", upstream ? dependency.name : "retries of callers");
  if (upstream) title.append(make("span", state + (left ? " " + Math.ceil(left) + " s" : ""), { class: "badge " + look }));
  box.append(title);
  const about = [];
  if (reason) about.push(reason.replaceAll("_", " "));
  if (dependency.shed) about.push(percent(dependency.shed) + " shed");
  if (dependency.held) about.push(dependency.held + " held");
  if (dependency.gate.seconds_left) about.push("asked to wait " + Math.ceil(dependency.gate.seconds_left) + " s");
  box.append(make("div", about.join(" · ") || "as usual", { class: "faint" }));
  const charts = make("div", null, { class: "charts" });
  const { calls, attempts } = dependency;
  if (calls || attempts) charts.append(chart("success", known.success, percent, 1));
  if (calls) charts.append(chart("calls / s", known.rate, String));
  // Retries and replays included.
  if (attempts) charts.append(chart("requests / s", known.load, String));
  if (calls || attempts) charts.append(chart("latency, p99", known.latency, seconds));
  // The budget is the upstream's; an endpoint has none.
  if (calls || !attempts) charts.append(chart("budget used", known.budget, percent, 1));
  box.append(charts);
  const actions = make("div", null, { class: "actions" });
  for (const [word, verb] of [["Force open", "open"], ["Force closed", "close"], ["Reset", "reset"]]) {
    const button = make("button", word, { "data-of": dependency.name, "data-verb": verb });
    button.onclick = () => act(async () => {
      if (verb === "open" && !(await sure("Refuse all calls to " + dependency.name + "?"))) return;
      await json("/dependencies/" + dependency.kind + "/" + verb + "?name=" + encodeURIComponent(dependency.name), "POST");
    });
    actions.append(button);
  }
  if (upstream) box.append(actions);
  return box;
}
function dependencies(all) {
  const open = all.filter((dependency) => dependency.breaker.state === "open").length;
  badge("open", open + " open", "bad");
  $("open").hidden = !open;
  const focus = document.activeElement && document.activeElement.dataset;
  const kept = focus && focus.verb ? [focus.of, focus.verb] : null;
  $("dependencies").replaceChildren(...all.map(card));
  if (!all.length) $("dependencies").append(make("p", "No call yet.", { class: "faint" }));
  if (kept) for (const button of $("dependencies").querySelectorAll("button"))
    if (button.dataset.of === kept[0] && button.dataset.verb === kept[1]) button.focus();
}

// --- live
async function live() {
  for (;;) {
    try {
      const reply = await ask("/events");
      if (!reply.ok) throw new Error("status " + reply.status);
      badge("live", "live", "good");
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data:")) show(JSON.parse(event.slice(5)));
      }
    } catch (error) { console.warn(error.message); }
    badge("live", "not connected", "bad");
    await new Promise((done) => setTimeout(done, 2000));
  }
}
function badge(id, text, look) { $(id).textContent = text; $(id).className = "badge " + look; }
let maintenance = false, running = 0;
function show(state) {
  maintenance = state.maintenance;
  $("maintenance").textContent = maintenance ? "on" : "off";
  $("maintenance").setAttribute("aria-checked", String(maintenance));
  badge("ready", state.draining ? "stopping" : "serving", state.draining ? "warn" : "good");
  dependencies(state.dependencies);
  const now = state.redrives.filter((job) => job.state === "running").length;
  if (now < running) act(() => letters());
  running = now;
  $("redrives").replaceChildren(...state.redrives.slice(-3).map(redrive));
  if (state.replays) $("counts").replaceChildren(...Object.entries(state.replays).map(([name, count]) => make("span", name + " " + count)));
}
$("maintenance").onclick = () => act(async () => {
  if (!maintenance && !(await sure("Send nothing to the upstream until maintenance is switched off?"))) return;
  await json("/maintenance/" + (maintenance ? "off" : "on"), "POST");
});

// --- dead letters and replays
const query = (form, more) => {
  const all = new URLSearchParams();
  for (const [name, value] of [...new FormData(form), ...Object.entries(more || {})]) if (value !== "") all.set(name, value);
  return "?" + all;
};
function cells(values) { const row = make("tr"); for (const value of values) row.append(make("td", value, { title: value === null ? "" : String(value) })); return row; }
function sift(body, text) { for (const row of body.rows) row.hidden = text !== "" && !row.textContent.toLowerCase().includes(text.toLowerCase()); }
function opener(row, text, opens) {
  const button = make("button", text, { class: "id" });
  // Where the focus comes back to when the dialog closes.
  button.onclick = () => { button.focus(); act(opens); };
  row.cells[0].replaceChildren(button);
}
let lettersAfter = 0;
async function letters(on) {
  if (!on) { lettersAfter = 0; $("letters").replaceChildren(); $("causes").replaceChildren(); }
  const listed = await json("/dead-letters" + query($("letter-filter"), { after: String(lettersAfter), limit: "200" }));
  for (const letter of listed.letters) {
    const row = cells([letter.id, moment(letter.changed_at), letter.attempts, letter.cause, letter.owner, letter.label]);
    opener(row, letter.id, () => detail(letter.id));
    $("letters").append(row);
    if (![...$("causes").children].some((option) => option.value === letter.cause)) $("causes").append(make("option", null, { value: letter.cause }));
  }
  if (!$("letters").rows.length) $("letters").append(cells(["none"]));
  lettersAfter = listed.after || 0;
  $("more-letters").hidden = !listed.after;
  sift($("letters"), $("letter-search").value);
}
$("letter-filter").onsubmit = (event) => { event.preventDefault(); act(() => letters()); };
$("more-letters").onclick = () => act(() => letters(true));
$("letter-search").oninput = () => sift($("letters"), $("letter-search").value);

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const shown = part.map((byte) => byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".").join("");
    lines.push(at.toString(16).padStart(8, "0") + "  " + part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48) + shown);
  }
  return lines.join("\n");
}
async function detail(id) {
  const letter = await json("/dead-letters/" + encodeURIComponent(id));
  $("detail-title").textContent = "Letter " + id;
  const list = make("dl");
  const add = (name, value) => list.append(make("dt", name), make("dd", value));
  for (const name of ["queue", "owner", "label", "cause", "reason", "attempts"]) add(name, letter[name]);
  for (const name of ["queued_at", "died_at"]) add(name.replace("_", " "), moment(letter[name]));
  for (const [name, value] of Object.entries(letter.headers)) add(name, value);
  for (const event of letter.history) add(moment(event.at), event.note);
  const bytes = Uint8Array.from(atob(letter.payload_base64), (c) => c.charCodeAt(0));
  const body = make("pre", null, { id: "payload", tabindex: "0" });
  const kind = make("select", null, { "aria-label": "Body as" });
  kind.append(make("option", "text"), make("option", "hex"));
  const draw = () => {
    const cut = bytes.subarray(0, kind.value === "hex" ? SHOWN / 4 : SHOWN);
    body.textContent = kind.value === "hex" ? hex(cut) : new TextDecoder().decode(cut);
    if (cut.length < bytes.length) body.textContent += "\n… " + (bytes.length - cut.length) + " bytes more";
  };
  // What is no text is shown as hex first.
  try { new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { kind.value = "hex"; }
  kind.onchange = draw; draw();
  $("detail-body").replaceChildren(list, make("p", "Body, " + bytes.length + " bytes, as "), kind, body);
  $("detail-redrive").onclick = () => act(async () => { await json("/dead-letters/" + encodeURIComponent(id) + "/redrive", "POST"); $("detail").close(); await letters(); });
  $("detail-purge").onclick = () => act(async () => {
    if (!(await sure("Remove this letter for good?"))) return;
    await json("/dead-letters/" + encodeURIComponent(id) + "/purge", "POST"); $("detail").close(); await letters();
  });
  $("detail").showModal();
}
$("detail-close").onclick = () => $("detail").close();

$("redrive").onclick = () => act(async () => {
  const path = "/dead-letters/redrive", form = $("letter-filter");
  const dry = await json(path + query(form, { dry_run: "true" }), "POST");
  if (!(await sure(dry.matched + " letters match. Redrive them, 100 a second?"))) return;
  await json(path + query(form, { per_second: "100", background: "true" }), "POST");
});
$("purge").onclick = () => act(async () => {
  const path = "/dead-letters/purge", form = $("letter-filter");
  const dry = await json(path + query(form, { dry_run: "true" }), "POST");
  if (!(await sure(dry.matched + " letters match. Remove them for good?"))) return;
  await json(path + query(form, { at_most: String(dry.matched), background: "true" }), "POST");
});
function redrive(job) {
  const purge = "purged" in job;
  const box = make("div", null, { class: "redrive" });
  const filter = Object.values(job.filter).filter(Boolean).join(", ");
  box.append(make("span", (purge ? "Purge " : "Redrive ") + job.number + " (" + filter + ")"), make("progress", null, { max: Math.max(1, job.total), value: job.seen }),
    make("span", (purge ? job.purged : job.redriven) + " of " + job.total + " " + (job.error || job.state)));
  if (job.state === "running") {
    const button = make("button", "Stop");
    button.onclick = () => act(() => json("/redrives/" + job.number + "/stop", "POST"));
    box.append(button);
  }
  return box;
}

// --- unknown outcomes
let keysAfter = null;
async function keys(on) {
  if (!on) { keysAfter = null; $("keys").replaceChildren(); }
  const listed = await json("/keys?limit=200" + (keysAfter ? "&after=" + keysAfter : ""));
  for (const known of listed.keys) {
    const row = cells([known.key.slice(0, 16) + "…", moment(known.unknown_since), moment(known.expires_at), known.note, ""]);
    row.cells[0].title = known.key;
    const add = (name, does) => { const button = make("button", name); button.onclick = () => act(does); row.cells[4].append(button, " "); };
    add("resolve", async () => { if (await finding(known)) await keys(); });
    add("release", async () => {
      if (!(await sure("Release this key? The next repeat is executed, even if that is the second time."))) return;
      await json("/keys/" + known.key + "/release?token=" + known.token, "POST"); await keys();
    });
    $("keys").append(row);
  }
  if (!$("keys").rows.length) $("keys").append(cells(["none"]));
  keysAfter = listed.next;
  $("more-keys").hidden = !listed.next;
}
function finding(known) {
  const dialog = $("finding"), form = dialog.querySelector("form");
  $("finding-title").textContent = "How did " + known.key.slice(0, 16) + "… end?";
  const { effect, status, type, body } = form.elements;
  const draw = () => { for (const field of [status, type, body]) field.disabled = effect.value !== "reply"; };
  effect.onchange = draw; draw();
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done, failed) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "resolve") return done(false);
    const all = new URLSearchParams({ effect: effect.value, token: known.token });
    if (effect.value === "reply") all.set("status", status.value);
    const sent = effect.value === "reply" && body.value ? body.value : undefined;
    json("/keys/" + known.key + "/resolve?" + all, "POST", sent, type.value).then(() => done(true), failed);
  }, { once: true }));
}
$("show-keys").onclick = () => act(() => keys());
$("more-keys").onclick = () => act(() => keys(true));

let replaysAfter = 0;
async function replays(on) {
  if (!on) { replaysAfter = 0; $("replays").replaceChildren(); }
  const listed = await json("/replays" + query($("replay-filter"), { after: String(replaysAfter), limit: "200" }));
  for (const replay of listed.replays) {
    const row = cells([replay.id, replay.status, moment(replay.queued_at), replay.attempts, replay.owner, replay.label, ""]);
    if (replay.status === "queued") for (const verb of ["trigger", "cancel"]) {
      const button = make("button", verb);
      button.onclick = () => act(async () => { await json("/replays/" + replay.id + "/" + verb, "POST"); await replays(); });
      row.cells[6].append(button, " ");
    }
    if (replay.status === "failed") opener(row, replay.id, () => detail(replay.id));
    $("replays").append(row);
    replaysAfter = replay.sequence;
  }
  if (!$("replays").rows.length) $("replays").append(cells(["none"]));
  $("more-replays").hidden = listed.replays.length < 200;
  sift($("replays"), $("replay-search").value);
}
$("replay-filter").onsubmit = (event) => { event.preventDefault(); act(() => replays()); };
$("more-replays").onclick = () => act(() => replays(true));
$("replay-search").oninput = () => sift($("replays"), $("replay-search").value);

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("letter-search").focus(); }
});
act(() => letters()); act(() => keys()); act(() => replays()); live();
