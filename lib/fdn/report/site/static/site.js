// Tables sort: each header gets a button, which works by mouse and keyboard and says its state. How a table is laid out
// was settled when the page was written; nothing here moves it. Then what the theme leaves out for keyboards and readers.
(() => {
  "use strict";

  const MISSING = new Set(["", "—", "n/a", "-", "–"]);
  const NUMBER = /^[\[<>≈~]?\s*([-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/i;
  const SHARE = /^\d+ \(([\d.]+)\s?%\)$/;

  function numberOf(text) {
    const share = SHARE.exec(text);
    if (share) return Number(share[1]);
    const found = NUMBER.exec(text.replace(/(\d),(?=\d{3}\b)/g, "$1"));
    return found ? Number(found[1].replace("−", "-")) : null;
  }

  function valueOf(cell) {  // of a cell of many lines: their median
    if (cell === undefined) return null;
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const holder = document.createElement("p");
    const lines = cell.innerHTML.split(/<br\s*\/?>/).map((line) => {
      holder.innerHTML = line;
      return holder.textContent.trim();
    });
    const given = lines.filter((line) => !MISSING.has(line));
    if (!given.length) return null;
    const numbers = given.map(numberOf).filter((value) => value !== null).sort((a, b) => a - b);
    if (numbers.length < given.length) return given.join(" ");
    const middle = (numbers.length - 1) / 2;
    return (numbers[Math.floor(middle)] + numbers[Math.ceil(middle)]) / 2;
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
    const rows = [];
    for (const row of table.tBodies[0].rows) {  // what unfolds below a row goes with it
      if (row.classList.contains("more")) rows[rows.length - 1].lines.push(row);
      else rows.push({ lines: [row], last: row.classList.contains("total"), value: valueOf(row.cells[column]) });
    }
    rows.sort((a, b) => {  // totals stay last, and what is missing before them, either way
      if (a.last || b.last) return a.last - b.last;
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
      return sign * compare(a.value, b.value);
    });
    table.tBodies[0].append(...rows.flatMap((row) => row.lines));
  }

  function enhance(table) {
    const row = table.tHead.rows[table.tHead.rows.length - 1];
    Array.from(row.cells).forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      const text = header.textContent.trim().replace(/\\[()]|[\\{}]/g, "") || `column ${column + 1}`;
      button.setAttribute("aria-label", `Sort by ${text}`);
      header.append(button);
      header.addEventListener("click", (event) => event.target.closest("a") || sort(table, header, column));
    });
  }

  function reach(box) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }

  // The theme opens its drawers by labels of hidden boxes, which no key reaches: they become buttons.
  function opens(id, name) {
    const box = document.getElementById(id);
    for (const label of document.querySelectorAll(`label[for="${id}"]:not(.overlay)`)) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = label.className;
      button.setAttribute("aria-label", name);
      button.setAttribute("aria-expanded", box.checked);
      button.append(...label.childNodes);
      button.addEventListener("click", () => box.click());
      box.addEventListener("change", () => button.setAttribute("aria-expanded", box.checked));
      label.replaceWith(button);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site");
    document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
    opens("__navigation", "Site navigation");
    opens("__toc", "Contents of this page");
    const menu = document.querySelector(".sidebar-scroll");
    const here = document.querySelector(".sidebar-tree .current-page");
    if (menu && here) {
      const below = here.getBoundingClientRect().top - menu.getBoundingClientRect().top;
      menu.scrollTo({ top: menu.scrollTop + below - menu.clientHeight / 2, behavior: "instant" });
    }
    const article = document.querySelector("article");
    if (!article) return;
    article.querySelectorAll("table.sortable").forEach(enhance);
    const boxes = article.querySelectorAll("pre, .math-wrapper");
    const observer = new ResizeObserver((entries) => entries.forEach((entry) => reach(entry.target)));
    boxes.forEach((box) => observer.observe(box));
    Promise.all([window.MathJax?.startup?.promise, document.fonts.ready]).then(() => boxes.forEach(reach));
    for (const block of article.querySelectorAll(".highlight-bibtex")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(block.querySelector("pre").textContent);
        button.textContent = "Copied";
      });
      block.prepend(button);
    }
  });
})();
