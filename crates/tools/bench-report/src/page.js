"use strict";
// Choices are attributes of the root that the styles act on, kept in the address: #reference=x1-qdr&scale=log&theme=dark.
const root = document.documentElement;
const choices = [...document.querySelectorAll("select[data-choice]")];

function choose(select, value) {
  const key = select.dataset.choice;
  select.value = value;
  if (select.value) root.dataset[key] = select.value;
  else delete root.dataset[key];
  if (key === "reference") {
    for (const svg of document.querySelectorAll("svg.figure")) svg.dataset.reference = select.value || "none";
  }
}

function readAddress() {
  if (location.hash && !location.hash.includes("=")) return; // A place in the page.
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const select of choices) {
    const value = wanted.get(select.dataset.choice) || "";
    choose(select, [...select.options].some((option) => option.value === value) ? value : "");
  }
}

function writeAddress() {
  const wanted = new URLSearchParams();
  for (const select of choices) if (select.value) wanted.set(select.dataset.choice, select.value);
  history.replaceState(null, "", "#" + wanted);
}

for (const select of choices) {
  select.addEventListener("change", () => { choose(select, select.value); writeAddress(); });
}
for (const hidden of document.querySelectorAll("nav.controls, label.filter")) hidden.hidden = false;
addEventListener("hashchange", readAddress);
readAddress();

// A figure is saved as it is seen: on its scale, with the paper's values that are chosen.
for (const link of document.querySelectorAll("a.save")) {
  link.addEventListener("click", (event) => {
    const shown = [...link.closest("figure").querySelectorAll("svg.figure")].find((svg) => svg.getClientRects().length);
    if (!shown) return;
    event.preventDefault();
    const copy = shown.cloneNode(true);
    const [, , width, height] = copy.getAttribute("viewBox").split(" ");
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = ["alone-style", "figure-style"].map((id) => document.getElementById(id).textContent).join("\n");
    copy.prepend(style);
    const saved = document.createElement("a");
    const text = new XMLSerializer().serializeToString(copy);
    saved.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    saved.download = link.download;
    saved.click();
    setTimeout(() => URL.revokeObjectURL(saved.href), 10000);
  });
}

const filter = document.getElementById("filter");
if (filter) {
  const rows = [...document.querySelectorAll("#cases tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
  });
}

// On paper everything that is folded is seen.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("figure details:not([open])")];
  for (const details of folded) details.open = true;
});
addEventListener("afterprint", () => { for (const details of folded) details.open = false; });
