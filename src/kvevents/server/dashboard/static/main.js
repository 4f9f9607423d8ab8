const figures = document.getElementById("figures");
let stats = {};
const show = () => { figures.textContent = JSON.stringify(stats, null, 2); };
const stream = new EventSource("/stream");
stream.addEventListener("snapshot", (event) => { stats = JSON.parse(event.data).stats; show(); });
stream.addEventListener("change", (event) => {
  for (const [path, value] of JSON.parse(event.data).changes) {
    const parent = path.slice(0, -1).reduce((part, key) => part[key], stats);
    parent[path.at(-1)] = value;
  }
  show();
});
