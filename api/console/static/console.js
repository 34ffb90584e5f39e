// What pages gain by code. Each of them works without.

// Times in the reader's own zone.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
function showTimes(root) {
  for (const t of root.querySelectorAll("time[data-at]")) {
    const at = new Date(Number(t.dataset.at));
    t.title = full.format(at);
    t.textContent = t.closest(".times") ? clock.format(at) : full.format(at);
  }
}
showTimes(document);

// Parts that show what goes on are fetched again, while somebody looks at them.
const live = document.querySelector("[data-reload]");
if (live) {
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "error", headers: { "X-Reload": "1" } });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const name of ["[data-reload]", ".figures"]) {
        const old = document.querySelector(name), next = page.querySelector(name);
        if (old && next) { showTimes(next); old.replaceWith(next); }
      }
    } catch { /* the server stops, or the session is over: the next click tells */ }
  }, 10000);
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
