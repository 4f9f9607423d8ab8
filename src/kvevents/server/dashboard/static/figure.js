// Figures with their names, and the keys of charts.
import { h, setAttribute, setText } from "./dom.js";
import { lookUp } from "./feed.js";

// Each says where in the document of `/stats` it stands.
export function facts(list, items) {
  const cells = items.map(([label, path]) => {
    const value = h("dd", { "data-figure": path });
    list.append(h("div", {}, h("dt", {}, label), value));
    return value;
  });
  return (stats) => items.forEach(([, path, show], place) => {
    const value = lookUp(stats, path) ?? null;
    setAttribute(cells[place], "data-value", JSON.stringify(value));
    setText(cells[place], show(value));
  });
}

// What each line of a chart is, with a place for its figure of the last minute.
export function legend(root, lines) {
  return lines.map((line) => {
    const value = h("b", { "data-line": line.name });
    root.append(h("span", { title: line.hint }, h("i", { class: "key", "data-colour": line.colour, "data-dash": line.dash }), `${line.name} `, value));
    return value;
  });
}
