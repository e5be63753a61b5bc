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
  // Fields above the table hide what is not looked for. The page's address may ask for the same:
  // #sort=FROWN&status=certified
  const form = table.closest("section").querySelector(".filter");
  if (!form) continue;
  const fields = [...form.querySelectorAll("input, select")];
  const column = (name) => heads.findIndex((head) => head.textContent.trim() === name);
  const every = table.tBodies[0].rows.length;
  const said = (text) => text.replace(/\s+/g, " ").trim();
  // An input is found by its number and by its own name, which stands behind it.
  const found = (cell, text) => {
    const shown = said(cell.textContent), number = cell.dataset.value ?? "";
    return [shown, shown.replace(/\*$/, ""), number].includes(text)
      || (number !== "" && shown === `${number} ${text}`);
  };
  const narrow = () => {
    const asked = fields.filter((field) => field.value.trim() !== "");
    let left = 0;
    for (const row of table.tBodies[0].rows) {
      const shown = asked.every((field) =>
        found(row.cells[column(field.name)], said(field.value)));
      row.hidden = !shown;
      left += shown;
    }
    form.querySelector("output").textContent = `${left.toLocaleString("en")} of ${every.toLocaleString("en")}`;
  };
  fields.forEach((field) => field.addEventListener("input", narrow));
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) if (wanted.has(field.name)) field.value = wanted.get(field.name);
  const by = column(wanted.get("sort"));
  if (by >= 0) heads[by].firstElementChild.click();
  if (wanted.size) narrow();
}
