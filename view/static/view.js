// What pages do beyond links: local times, the theme, keys, and fresh content. All works without it.
"use strict";

const root = document.documentElement;
const chosen = localStorage.getItem("theme");
if (chosen) root.dataset.theme = chosen;

function localTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime()) || time.title) continue;
    time.title = time.textContent;
    const two = (value) => String(value).padStart(2, "0");
    time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
      `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  }
}

function switchTheme() {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

// The place of an open <details> among its like, so that fresh content opens the same ones.
function openOnes(within) {
  return [...within.querySelectorAll("details")].map((each) => each.open);
}

async function refresh() {
  const main = document.getElementById("main");
  // What a reader has selected, or types, stays as it is.
  if (!main || document.hidden || String(getSelection())) return;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer || !answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const replacement = fresh.getElementById("main");
  if (!replacement || replacement.innerHTML === main.dataset.seen) return;
  const open = openOnes(main);
  const focused = document.activeElement ? document.activeElement.id : "";
  const seen = replacement.innerHTML;
  main.replaceChildren(...replacement.childNodes);
  main.dataset.seen = seen;
  [...main.querySelectorAll("details")].forEach((each, place) => {
    if (place < open.length) each.open = open[place];
  });
  localTimes(main);
  if (focused) document.getElementById(focused)?.focus();
}

function keepFresh() {
  const live = document.querySelector("[data-live]");
  const every = document.querySelector("[data-refresh-s]");
  if (live && window.EventSource) {
    // The browser connects again by itself, and tells the last id that it had.
    const events = new EventSource(live.dataset.live);
    events.addEventListener("changed", refresh);
  }
  if (every) {
    setInterval(() => {
      if (document.querySelector("[data-refresh-s]")) refresh();
    }, 1000 * Number(every.dataset.refreshS));
  }
}

// j and k go from turn to turn, n and N from failure to failure; others follow a link of the page.
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const link = event.key.length === 1 &&
    [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
  const box = event.key === "/" && document.getElementById("q");
  if (box) { event.preventDefault(); box.focus(); return; }
  if (link) { event.preventDefault(); link.click(); return; }
  const wanted = { j: ".turn", k: ".turn", n: ".turn.failed", N: ".turn.failed" }[event.key];
  if (!wanted) return;
  const turns = [...document.querySelectorAll(wanted)];
  const forward = event.key === "j" || event.key === "n";
  const next = forward
    ? turns.find((each) => each.getBoundingClientRect().top > 8)
    : turns.reverse().find((each) => each.getBoundingClientRect().top < -8);
  if (next) next.scrollIntoView();
}

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  const button = document.getElementById("theme");
  if (button) { button.hidden = false; button.addEventListener("click", switchTheme); }
  document.addEventListener("keydown", onKey);
  keepFresh();
});
