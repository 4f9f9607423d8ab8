// Elements without markup in strings: what comes from the network only ever becomes text.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Keeps one child for each item, made once and brought up to date after that, so that focus and open parts stay.
export function keyed(parent, items, keyOf, make, update) {
  parent.known ??= new Map();
  const known = parent.known;
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (!element) {
      element = make(item);
      known.set(key, element);
    }
    if (element !== before) parent.insertBefore(element, before);
    else before = before.nextElementSibling;
    update(element, item);
  }
}

const STATES = {
  live: ["●", "live"],
  recovering: ["◐", "recovering"],
  connecting: ["○", "connecting"],
  degraded: ["▲", "degraded"],
  lost: ["✕", "lost"],
  down: ["■", "down"],
  draining: ["◧", "draining"],
  blind: ["◌", "without events"],
  up: ["●", "up"],
};

export const stateWord = (state) => (STATES[state] ?? ["", state])[1];

export function showState(element, state) {
  const [sign, word] = STATES[state] ?? ["·", state];
  setAttribute(element, "class", "state");
  setAttribute(element, "data-state", state);
  setText(element, `${sign} ${word}`);
}

// A row of buttons of which one is pressed.
export function choice(parent, options, initial, onChange) {
  const buttons = options.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": value === initial, onclick: () => choose(value) }, label));
  function choose(value) {
    options.forEach(([option], place) => buttons[place].setAttribute("aria-pressed", option === value));
    onChange(value);
  }
  buttons.forEach((button, place) => button.setAttribute("aria-pressed", options[place][0] === initial));
  parent.append(...buttons);
}
