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

// Parts that show what goes on are fetched again, while somebody looks at them.
const live = document.querySelector("[data-reload]");
if (live) {
  const kept = live.id ? "#" + live.id : "[data-reload]";
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "error", headers: { "X-Reload": "1" } });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const name of [kept, ".figures"]) {
        const old = document.querySelector(name), next = page.querySelector(name);
        if (old && next) { showTimes(next); old.replaceWith(next); }
      }
      if (!document.querySelector("[data-reload]")) clearInterval(timer); // it has come to its end
    } catch { /* the server stops, or the session is over: the next click tells */ }
  }, 1000 * (live.dataset.reload || 10));
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
  let left = 0, paused = false, held = [];
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
  const say = () => { state.textContent = left ? `Sample only: about ${left} more were not shown.` : "Watching."; };
  const source = new EventSource(stream.dataset.stream);
  source.addEventListener("watching", (e) => {
    say();
    if (JSON.parse(e.data).part) state.textContent = "Watching this node of the cluster only; other nodes apply other changes.";
  });
  source.addEventListener("left_out", (e) => { const n = JSON.parse(e.data); left += n.left_out + n.unseen; say(); });
  source.addEventListener("message", (e) => {
    const i = JSON.parse(e.data);
    if (paused) { held.push(i); held = held.slice(-most); } else show(i);
  });
  source.addEventListener("error", () => {
    state.textContent = source.readyState === EventSource.CLOSED ? "The connection was closed, or you have too many of these windows open. Close some and reload the page." : "Connection lost. Reconnecting…";
  });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    if (!paused) { held.forEach(show); held = []; }
  });
}
