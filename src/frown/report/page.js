"use strict";
// A click on a column's head sorts the table by it; a second click turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent;
    return text === "" || isNaN(text) ? text : Number(text);
  };
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((first, second) => {
      const a = key(first, column), b = key(second, column);
      if (a === "" || b === "") return (a === "") - (b === "");  // no value: last either way
      return (down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
    });
    table.tBodies[0].append(...rows);
  }));
}
