// Lines over time, drawn by plotly's own script, which the router serves from the installed package.
import { setText } from "./dom.js";

let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/dashboard/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the chart library did not load"));
    document.head.append(script);
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const SETTINGS = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };

export class Chart {
  // `lines`: {name, colour (of the stylesheet), dash?, fill?, hover (d3 format)}; `axis`: settings of the y axis.
  constructor(element, lines, axis = {}) {
    this.element = element;
    this.lines = lines;
    this.axis = axis;
    this.data = null;
    this.waiting = document.createElement("p");
    this.waiting.className = "waiting";
    setText(this.waiting, "drawing…");
    element.append(this.waiting);
    load().then(
      (plotly) => {
        this.plotly = plotly;
        this.waiting.remove();
        if (this.data) this.draw(...this.data);
      },
      (error) => setText(this.waiting, error.message),
    );
  }

  // `times`: unix seconds; `columns`: one for each line; `range`: first and last second shown.
  draw(times, columns, range) {
    this.data = [times, columns, range];
    if (!this.plotly || document.hidden) return;
    const x = times.map((at) => new Date(1000 * at));
    const traces = this.lines.map((line, place) => ({
      x,
      y: columns[place],
      name: line.name,
      type: "scatter",
      mode: columns[place].filter((value) => value !== null).length < 2 ? "markers" : "lines",
      connectgaps: line.connect ?? false,
      line: { color: colour(line.colour), width: line.width ?? 2, dash: line.dash ?? "solid", shape: line.shape ?? "linear" },
      marker: { color: colour(line.colour), size: 5 },
      fill: line.fill ? "tozeroy" : "none",
      fillcolor: line.fill ? `${colour(line.colour)}22` : undefined,
      hovertemplate: `%{y:${line.hover ?? ",.3~r"}}<extra>${line.name}</extra>`,
    }));
    const ink = colour("muted");
    const axis = { gridcolor: colour("line"), zeroline: false, tickfont: { color: ink }, fixedrange: true, automargin: true };
    const layout = {
      margin: { l: 8, r: 8, t: 6, b: 4 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } },
      xaxis: {
        ...axis, type: "date", range: range.map((at) => new Date(1000 * at)), showgrid: false, tickangle: 0,
        nticks: this.element.clientWidth < 420 ? 4 : 7, tickformat: range[1] - range[0] < 300 ? "%H:%M:%S" : "%H:%M",
        hoverformat: "%H:%M:%S", ticklabelstandoff: 5, ticklabelshift: 6,
      },
      yaxis: { ...axis, rangemode: "tozero", nticks: 5, ...this.axis },
    };
    const isEmpty = columns.every((column) => column.every((value) => !value));
    if (isEmpty) layout.yaxis = { ...layout.yaxis, range: this.axis.range ?? [0, 1], rangemode: "normal", nticks: 3 };
    this.plotly.react(this.element, traces, layout, SETTINGS);
    this.empty ??= this.element.appendChild(Object.assign(document.createElement("p"), { className: "waiting", textContent: "nothing in this time" }));
    this.empty.hidden = !isEmpty;
  }
}
