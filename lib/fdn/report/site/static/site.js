// Every table sorts: each header becomes a button, which works by mouse and keyboard and says its state.
// Then what the theme leaves out for keyboards and screen readers.
(() => {
  "use strict";

  const MISSING = new Set(["", "—", "n/a", "-", "–"]);
  const NUMBER = /^[<>≈~]?\s*([-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/i;

  function valueOf(cell) {
    if (cell === undefined) return null;
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim().replace(/^\[/, "");
    if (MISSING.has(text)) return null;
    const found = NUMBER.exec(text.replace(/(\d),(?=\d{3}\b)/g, "$1"));
    return found ? Number(found[1].replace("−", "-")) : text;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sort(table, header, column) {
    const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [row, valueOf(row.cells[column])]);
    rows.sort(([, a], [, b]) => {  // what is missing stays last either way
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * compare(a, b);
    });
    body.append(...rows.map(([row]) => row));
  }

  function enhance(table) {
    const head = table.tHead && table.tHead.rows[table.tHead.rows.length - 1];
    const body = table.tBodies[0];
    if (!head || !body || body.rows.length < 2 || body.querySelector("[rowspan], [colspan]")) return;
    for (const cell of table.querySelectorAll("td, th")) {  // a name or an interval stays on one line, a reason is wide
      const length = cell.textContent.length;
      if (length < (cell.closest("thead") ? 14 : 28)) cell.classList.add("short");
      if (length > 120) cell.classList.add("long");
    }
    Array.from(head.cells).forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...header.childNodes);
      const text = button.textContent.trim().replace(/\\[()]|[\\{}]/g, "");
      if (!text || button.querySelector(".math")) button.setAttribute("aria-label", text || `column ${column + 1}`);
      button.addEventListener("click", () => sort(table, header, column));
      header.append(button);
    });
  }

  // A box that scrolls can be reached by keyboard and has a name.
  function name(box, index) {
    if (box.hasAttribute("role")) return;
    const section = box.closest("section");
    const heading = section && section.querySelector("h1, h2, h3, h4");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `Table ${index + 1}, ${heading ? heading.firstChild.textContent : document.title}`);
  }

  function reach(box) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site");
    document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
    const article = document.querySelector("article");
    if (!article) return;
    article.querySelectorAll("table").forEach(enhance);
    article.querySelectorAll(".table-wrapper").forEach(name);
    const boxes = article.querySelectorAll("pre, .math-wrapper");
    const observer = new ResizeObserver((entries) => entries.forEach((entry) => reach(entry.target)));
    boxes.forEach((box) => observer.observe(box));
    Promise.all([window.MathJax?.startup?.promise, document.fonts.ready]).then(() => boxes.forEach(reach));
  });
})();
