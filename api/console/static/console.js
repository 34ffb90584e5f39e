// What pages gain by code. Each of them works without.

// Times in the reader's own zone.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
function showTimes(root) {
  for (const t of root.querySelectorAll("time[data-at]")) {
    const at = new Date(Number(t.dataset.at));
    t.title = full.format(at);
    t.textContent = (t.closest(".days") ? day : t.closest(".times") ? clock : full).format(at);
  }
}
showTimes(document);

// What the server answers to a page that asks by itself, or why there is no such answer.
async function ask(path) {
  const answer = await fetch(path, { redirect: "manual", headers: { "X-Reload": "1" }, signal: AbortSignal.timeout(10000) });
  if (answer.type === "opaqueredirect") throw Object.assign(new Error("You are signed out. Reload the page to sign in."), { final: true }); // it leads to the sign-in
  if (answer.ok) return answer;
  const said = (await answer.json().catch(() => ({}))).message?.replace(/^invalid: /, "");
  throw Object.assign(new Error(said ?? `The server answered ${answer.status}.`), { final: answer.status < 500 && answer.status !== 429 });
}
const reason = (e) => e instanceof TypeError || e.name === "TimeoutError" ? "The server doesn't answer." : e.message;

// Parts that show what goes on are fetched again, while somebody looks at them. When they can't be, the page says so.
const live = document.querySelector("[data-reload]");
if (live) {
  const kept = live.id ? "#" + live.id : "[data-reload]", notice = document.createElement("p");
  notice.className = "problem";
  notice.setAttribute("role", "status");
  let fresh = new Date(), busy = false;
  const reload = async () => {
    if (document.hidden || busy) return;
    busy = true;
    try {
      const page = new DOMParser().parseFromString(await (await ask(live.dataset.page)).text(), "text/html");
      for (const name of [kept, ".figures"]) {
        const old = document.querySelector(name), next = page.querySelector(name);
        if (old && next) { showTimes(next); old.replaceWith(next); }
      }
      fresh = new Date();
      notice.remove();
      if (!document.querySelector("[data-reload]")) clearInterval(timer); // it has come to its end
    } catch (e) {
      notice.textContent = `Not updated since ${full.format(fresh)}. ${reason(e)}`;
      document.querySelector("main").prepend(notice);
    }
    busy = false;
  };
  const timer = setInterval(reload, 1000 * live.dataset.reload);
  document.addEventListener("visibilitychange", () => { if (document.querySelector("[data-reload]")) reload(); });
}

// What was done is said once, not again when the page is reloaded.
if (new URLSearchParams(location.search).has("done")) history.replaceState(null, "", location.pathname);

// A form that changes something is sent once, however often one clicks.
document.addEventListener("submit", (e) => {
  const form = e.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) e.preventDefault();
  form.dataset.sent = "yes";
});
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; }); // also when one comes back

// In a narrow window, the entry of a navigation that one is at is in sight.
for (const here of document.querySelectorAll("nav [aria-current]")) {
  const over = here.getBoundingClientRect().right - here.parentElement.getBoundingClientRect().right;
  if (over > 0) here.parentElement.scrollLeft += over;
}

// A menu closes when one clicks elsewhere, or by Escape.
document.addEventListener("click", (e) => {
  for (const d of document.querySelectorAll("details.menu[open]")) if (!d.contains(e.target)) d.open = false;
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape") for (const d of document.querySelectorAll("details.menu[open]")) { d.open = false; d.querySelector("summary").focus(); }
});

// Copies what is shown once.
for (const b of document.querySelectorAll("button[data-copy]")) {
  b.hidden = false;
  b.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.querySelector(b.dataset.copy).textContent);
    b.textContent = "Copied";
  });
}

// The search shows the field that an alias alone has when it is one.
document.documentElement.classList.add("js");
const find = document.querySelector(".find");
if (find) {
  const show = () => find.classList.toggle("alias", find.elements.by.value === "alias");
  find.elements.by.addEventListener("change", show);
  show();
}

// What is applied comes as server-sent events. All of it is text that clients have sent: it is never taken for markup.
const stream = document.querySelector("[data-stream]");
if (stream) {
  const rows = document.querySelector("#stream"), state = document.querySelector("#stream-state"), pause = document.querySelector("#pause");
  const most = 200;
  let left = 0, part = false, gap = false, paused = false, held = [], source, timer;
  const cell = (row, text, className) => {
    const td = document.createElement("td");
    td.textContent = text;
    if (className) td.className = className;
    row.append(td);
    return td;
  };
  const what = (i) => {
    if (i.kind === "consent") return [i.state, i.subscription_group_name, i.value].filter(Boolean).join(" · ");
    const rest = i.attributes ?? i.properties;
    return [i.name, i.product_id, i.price !== undefined ? `${i.quantity} × ${i.price} ${i.currency}` : "", rest ? JSON.stringify(rest) : "", i.cut ? "(too long to show)" : ""].filter(Boolean).join(" ");
  };
  const show = (i) => {
    const row = document.createElement("tr");
    const when = document.createElement("time");
    when.dataset.at = Date.parse(i.at);
    cell(row, "").append(when);
    cell(row, i.kind);
    const who = cell(row, "", "name"), name = i.external_id ?? i.email ?? i.phone ?? (i.user_alias ? `${i.user_alias.alias_label}: ${i.user_alias.alias_name}` : i.svc_id ?? "");
    if (i.svc_id) {
      const a = document.createElement("a");
      a.href = `${stream.dataset.users}/${encodeURIComponent(i.svc_id)}`;
      a.textContent = name;
      who.append(a);
    } else who.textContent = name;
    cell(row, what(i), "what");
    showTimes(row);
    rows.prepend(row);
    while (rows.childElementCount > most) rows.lastElementChild.remove();
    document.querySelector("#stream-empty").hidden = true;
  };
  const say = () => {
    state.textContent = [part ? "Watching this node of the cluster only; other nodes apply other changes." : "Watching.",
      left ? `Sample only: about ${left} more were not shown.` : "", gap ? "There is a gap: for a while, this page was not connected." : ""].join(" ").trim();
  };
  const watch = () => {
    source = new EventSource(stream.dataset.stream);
    source.addEventListener("watching", (e) => { part = JSON.parse(e.data).part; say(); });
    source.addEventListener("left_out", (e) => { const n = JSON.parse(e.data); left += n.left_out + n.unseen; say(); });
    source.addEventListener("message", (e) => {
      const i = JSON.parse(e.data);
      if (paused) { held.push(i); held = held.slice(-most); } else show(i);
    });
    source.addEventListener("error", () => {
      gap = true;
      if (source.readyState === EventSource.CLOSED) refused(); else state.textContent = "Connection lost. Reconnecting…";
    });
  };
  const leave = () => { gap = true; source?.close(); source = null; };
  // A refused stream doesn't say why. It is tried again, unless it would be refused again.
  const refused = async () => {
    leave();
    state.textContent = "Connection lost. Reconnecting…";
    try {
      await (await ask(stream.dataset.stream)).body.cancel();
    } catch (e) {
      state.textContent = reason(e);
      if (e.final) return;
    }
    timer = setTimeout(() => { if (!source && !document.hidden) watch(); }, 10000);
  };
  // A browser has few connections to a server: a tab in the background gives its own back after a minute.
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(leave, 60000); else if (!source) watch();
  };
  document.addEventListener("visibilitychange", look);
  watch();
  look();
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    if (!paused) { held.forEach(show); held = []; }
  });
}
